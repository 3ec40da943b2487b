// The frame buffer of a layer: codes come in order, then windows over them are read tap by tap.
//
// A window is KH x KW places of KC neighbouring codes. Every place of ROWS x COLUMNS is visited with GROUPS windows (a
// group is KC channels), each PASSES times, for as many results. Addresses only ever grow by constants. `step` takes
// a tap; its code is there one clock later, and `in_frame` is 0 where the window hangs over the edge.
//
// With DOUBLED, there is room for two frames: one comes in while windows go over the other.
module rlx_frame #(
    parameter BITS = 8,
    parameter WORDS = 16,
    parameter ADDRESS_BITS = 4,
    parameter ROWS = 1,
    parameter COLUMNS = 1,
    parameter GROUPS = 1,
    parameter PASSES = 1,
    parameter KH = 1,
    parameter KW = 1,
    parameter KC = 16,
    parameter START = 0,
    parameter TO_COLUMN_OF_WINDOW = 1,
    parameter TO_ROW_OF_WINDOW = 1,
    parameter TO_COLUMN = 1,
    parameter TO_ROW = 1,
    parameter PADDED = 0,
    parameter HEIGHT = 1,
    parameter WIDTH = 1,
    parameter EDGE_BITS = 2,
    parameter TOP = 0,
    parameter LEFT = 0,
    parameter DILATION_Y = 1,
    parameter DILATION_X = 1,
    parameter STRIDE_Y = 1,
    parameter STRIDE_X = 1,
    parameter SPRAM = 0,
    parameter DOUBLED = 0
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire [BITS-1:0] in_data,
    output wire tap_valid,
    input wire step,
    output wire tap_first,
    output wire tap_last,
    output wire tap_turn,
    output wire [BITS-1:0] code,
    output wire in_frame
);
    localparam [31:0] LAST_WORD_32 = WORDS - 1;
    localparam [ADDRESS_BITS-1:0] LAST_WORD = LAST_WORD_32[ADDRESS_BITS-1:0];
    localparam [31:0] FIRST_ADDRESS_32 = START;
    localparam [ADDRESS_BITS-1:0] FIRST_ADDRESS = FIRST_ADDRESS_32[ADDRESS_BITS-1:0];
    localparam [31:0] ONE_32 = 1;
    localparam [ADDRESS_BITS-1:0] ONE = ONE_32[ADDRESS_BITS-1:0];
    localparam [31:0] GROUP_STEP_32 = KC;
    localparam [ADDRESS_BITS-1:0] GROUP_STEP = GROUP_STEP_32[ADDRESS_BITS-1:0];
    localparam [31:0] WINDOW_COLUMN_STEP_32 = TO_COLUMN_OF_WINDOW;
    localparam [ADDRESS_BITS-1:0] WINDOW_COLUMN_STEP = WINDOW_COLUMN_STEP_32[ADDRESS_BITS-1:0];
    localparam [31:0] WINDOW_ROW_STEP_32 = TO_ROW_OF_WINDOW;
    localparam [ADDRESS_BITS-1:0] WINDOW_ROW_STEP = WINDOW_ROW_STEP_32[ADDRESS_BITS-1:0];
    localparam [31:0] COLUMN_STEP_32 = TO_COLUMN;
    localparam [ADDRESS_BITS-1:0] COLUMN_STEP = COLUMN_STEP_32[ADDRESS_BITS-1:0];
    localparam [31:0] ROW_STEP_32 = TO_ROW;
    localparam [ADDRESS_BITS-1:0] ROW_STEP = ROW_STEP_32[ADDRESS_BITS-1:0];

    reg has_frame;
    assign tap_valid = has_frame;
    reg [ADDRESS_BITS-1:0] address, origin;
    // Seven loops, the innermost first; each steps when those inside it end.
    wire [6:0] first, last;
    wire end_kc = last[0];
    wire end_kw = end_kc && last[1];
    wire end_kh = end_kw && last[2];
    wire end_pass = end_kh && last[3];
    wire end_group = end_pass && last[4];
    wire end_column = end_group && last[5];
    wire end_row = end_column && last[6];
    rlx_counter #(.COUNT(KC)) count_kc (
        .clk(clk), .clear(!tap_valid), .step(step), .at_first(first[0]), .at_last(last[0])
    );
    rlx_counter #(.COUNT(KW)) count_kw (
        .clk(clk), .clear(!tap_valid), .step(step && end_kc), .at_first(first[1]), .at_last(last[1])
    );
    rlx_counter #(.COUNT(KH)) count_kh (
        .clk(clk), .clear(!tap_valid), .step(step && end_kw), .at_first(first[2]), .at_last(last[2])
    );
    rlx_counter #(.COUNT(PASSES)) count_pass (
        .clk(clk), .clear(!tap_valid), .step(step && end_kh), .at_first(first[3]), .at_last(last[3])
    );
    rlx_counter #(.COUNT(GROUPS)) count_group (
        .clk(clk), .clear(!tap_valid), .step(step && end_pass), .at_first(first[4]), .at_last(last[4])
    );
    rlx_counter #(.COUNT(COLUMNS)) count_column (
        .clk(clk), .clear(!tap_valid), .step(step && end_group), .at_first(first[5]), .at_last(last[5])
    );
    rlx_counter #(.COUNT(ROWS)) count_row (
        .clk(clk), .clear(!tap_valid), .step(step && end_column), .at_first(first[6]), .at_last(last[6])
    );
    wire unused_first = &{1'b0, first[6:3]};

    assign tap_first = first[0] && first[1] && first[2];
    assign tap_last = end_kh;
    assign tap_turn = end_group;

    // A window of the same place starts at `origin` again; all other ways lead on from where the last one was.
    wire [ADDRESS_BITS-1:0] origin_step = end_column ? ROW_STEP : end_group ? COLUMN_STEP : GROUP_STEP;
    wire [ADDRESS_BITS-1:0] next_origin = origin + origin_step;
    wire [ADDRESS_BITS-1:0] address_step = end_kw ? WINDOW_ROW_STEP : end_kc ? WINDOW_COLUMN_STEP : ONE;

    // Windows begin with a new frame: after one has come, and after the last one of the frame before.
    wire done = step && end_row;
    wire restart = !tap_valid || done;
    wire [ADDRESS_BITS-1:0] next_address = end_pass ? next_origin : end_kh ? origin : address + address_step;

    always @(posedge clk) begin
        if (restart) begin
            origin <= FIRST_ADDRESS;
        end else if (step && end_pass) begin
            origin <= next_origin;
        end
    end

    generate
        if (DOUBLED != 0) begin : two_frames
            localparam [31:0] BANK_32 = 1 << ADDRESS_BITS;
            reg has_both, write_bank, read_bank;
            reg [ADDRESS_BITS-1:0] write_address;
            wire write = in_valid && in_ready;
            wire loaded = write && write_address == LAST_WORD;
            assign in_ready = !has_both;
            always @(posedge clk) begin
                if (rst) begin
                    has_frame <= 1'b0;
                    has_both <= 1'b0;
                    write_bank <= 1'b0;
                    read_bank <= 1'b0;
                    write_address <= 0;
                end else begin
                    if (loaded != done) begin
                        has_frame <= loaded || has_both;
                        has_both <= loaded && has_frame;
                    end
                    if (loaded) write_bank <= !write_bank;
                    if (done) read_bank <= !read_bank;
                    if (write) write_address <= loaded ? 0 : write_address + ONE;
                end
                if (restart) address <= FIRST_ADDRESS;
                else if (step) address <= next_address;
            end
            rlx_ram_pair #(
                .BITS(BITS), .WORDS(BANK_32 + WORDS), .ADDRESS_BITS(ADDRESS_BITS + 1)
            ) memory (
                .clk(clk), .write(write), .write_address({write_bank, write_address}), .data(in_data), .read(step),
                .read_address({read_bank, address}), .word(code)
            );
        end else begin : one_frame
            assign in_ready = !has_frame;
            always @(posedge clk) begin
                if (rst) begin
                    has_frame <= 1'b0;
                    address <= 0;
                end else if (!has_frame) begin
                    if (in_valid) begin
                        has_frame <= address == LAST_WORD;
                        address <= (address == LAST_WORD) ? FIRST_ADDRESS : address + ONE;
                    end
                end else if (step) begin
                    if (done) has_frame <= 1'b0;
                    address <= done ? 0 : next_address;
                end
            end
            rlx_ram #(
                .BITS(BITS), .WORDS(WORDS < 2 ? 2 : WORDS), .ADDRESS_BITS(ADDRESS_BITS), .SPRAM(SPRAM)
            ) memory (
                .clk(clk), .enable(step || (in_valid && in_ready)), .write(!tap_valid), .address(address), .data(in_data),
                .word(code)
            );
        end
    endgenerate

    generate
        if (PADDED != 0) begin : with_edges
            localparam [31:0] FIRST_Y_32 = -TOP;
            localparam [EDGE_BITS-1:0] FIRST_Y = FIRST_Y_32[EDGE_BITS-1:0];
            localparam [31:0] FIRST_X_32 = -LEFT;
            localparam [EDGE_BITS-1:0] FIRST_X = FIRST_X_32[EDGE_BITS-1:0];
            localparam [31:0] END_Y_32 = HEIGHT;
            localparam [EDGE_BITS-1:0] END_Y = END_Y_32[EDGE_BITS-1:0];
            localparam [31:0] END_X_32 = WIDTH;
            localparam [EDGE_BITS-1:0] END_X = END_X_32[EDGE_BITS-1:0];
            localparam [31:0] TAP_Y_32 = DILATION_Y;
            localparam [EDGE_BITS-1:0] TAP_Y = TAP_Y_32[EDGE_BITS-1:0];
            localparam [31:0] TAP_X_32 = DILATION_X;
            localparam [EDGE_BITS-1:0] TAP_X = TAP_X_32[EDGE_BITS-1:0];
            localparam [31:0] PLACE_Y_32 = STRIDE_Y;
            localparam [EDGE_BITS-1:0] PLACE_Y = PLACE_Y_32[EDGE_BITS-1:0];
            localparam [31:0] PLACE_X_32 = STRIDE_X;
            localparam [EDGE_BITS-1:0] PLACE_X = PLACE_X_32[EDGE_BITS-1:0];
            // Places above and left of the frame are negative, which is more than its size here.
            reg [EDGE_BITS-1:0] y, x, place_y, place_x;
            wire [EDGE_BITS-1:0] next_place_x = end_column ? FIRST_X : place_x + PLACE_X;
            wire [EDGE_BITS-1:0] next_place_y = end_column ? place_y + PLACE_Y : place_y;
            reg is_in;
            assign in_frame = is_in;
            always @(posedge clk) begin
                if (restart) begin
                    y <= FIRST_Y;
                    place_y <= FIRST_Y;
                    x <= FIRST_X;
                    place_x <= FIRST_X;
                end else if (step) begin
                    if (end_group) begin
                        place_x <= next_place_x;
                        place_y <= next_place_y;
                    end
                    x <= end_group ? next_place_x : end_kw ? place_x : end_kc ? x + TAP_X : x;
                    y <= end_group ? next_place_y : end_kh ? place_y : end_kw ? y + TAP_Y : y;
                end
                if (step) is_in <= y < END_Y && x < END_X;
            end
        end else begin : without_edges
            assign in_frame = 1'b1;
        end
    endgenerate
endmodule
