/* A serial line over the USB of Nordic's nRF52840: a CDC-ACM device, without interrupts.
 *
 * All is done by polling: requests of the host wait in the peripheral while a network runs, which hosts allow for
 * 500 ms and more. The device stays awake while the bus is suspended. A packet of results that a program on the host
 * left unread stays for the next one. Registers are those of the product specification, with what the errata ask for;
 * this was checked against a model of the peripheral, and has never run on a chip.
 */
#include "serial.h"
#include "usb_registers.h"
#include "usb_strings.h"

#define PACKET 64u
#define NOTIFICATIONS 1u /* endpoint in, of which no packet is ever sent */
#define BULK 2u          /* endpoint in and out */
#define IN 0x80u
#define LINE_CODING_BYTES 7u

/* What the host is told of the device. */
static const uint8_t device_descriptor[18] = {
    18, 1, 0x00, 0x02, 2, 0, 0, PACKET, 0xc0, 0x16, 0xdd, 0x27, 0x00, 0x01, 1, 2, 3, 1
};

static const uint8_t configuration_descriptor[67] = {
    9, 2, 67, 0, 2, 1, 0, 0x80, 50,           /* two interfaces, at most 100 mA from the bus */
    9, 4, 0, 0, 1, 2, 2, 1, 0,                /* the interface of requests: CDC, abstract control model */
    5, 0x24, 0, 0x10, 0x01,                   /* CDC 1.10 */
    5, 0x24, 1, 0, 1,                         /* no calls */
    4, 0x24, 2, 2,                            /* line coding and control line state */
    5, 0x24, 6, 0, 1,                         /* the two interfaces belong together */
    7, 5, IN | NOTIFICATIONS, 3, 8, 0, 16,    /* interrupt endpoint */
    9, 4, 1, 0, 2, 10, 0, 0, 0,               /* the interface of data */
    7, 5, BULK, 2, PACKET, 0, 0,              /* bulk out */
    7, 5, IN | BULK, 2, PACKET, 0, 0          /* bulk in */
};

enum stage { IDLE, SENDING, RECEIVING };

struct request {
    uint32_t type, number, value, index, length;
};

/* The peripheral reads and writes RAM only, at whole words. */
static uint32_t answer_words[32], received_words[PACKET / 4u], sent_words[PACKET / 4u];
static uint8_t *const answer = (uint8_t *)answer_words;
static uint8_t *const received = (uint8_t *)received_words;
static uint8_t *const to_send = (uint8_t *)sent_words;

static struct {
    uint32_t is_attached, configuration, halted_in, halted_out;
    enum stage stage;
    uint32_t answer_size, answer_sent, asks_for_more, is_last;
    uint8_t line_coding[LINE_CODING_BYTES];
    uint32_t is_open, begins_anew;
    uint32_t packet_waits, received_size, taken; /* from the host */
    uint32_t filled, is_sending, needs_end;      /* to the host */
} usb;

static void clear_event(uint32_t event)
{
    usb_write(event, 0u);
    (void)usb_read(event); /* the write has arrived when this returns */
}

/* Between the memory of an endpoint and RAM. Errata 199: no task is taken during a transfer unless this is set. */
static void transfer(uint32_t pointer, uint32_t task, uint32_t ended, uint8_t *data, uint32_t size)
{
    uint32_t patience = 100000u;

    usb_write_pointer(pointer, data);
    usb_write(pointer + 4u, size);
    clear_event(ended);
    usb_write(USB_TASKS_HELD, 0x82u);
    usb_write(task, 1u);
    while (usb_read(ended) == 0u && patience > 0u) {
        patience--;
    }
    clear_event(ended);
    usb_write(USB_TASKS_HELD, 0u);
}

static void send_packet(uint32_t endpoint, uint8_t *data, uint32_t size)
{
    transfer(USB_EPIN_PTR(endpoint), USB_STARTEPIN(endpoint), USB_ENDEPIN(endpoint), data, size);
}

static uint32_t receive_packet(uint32_t endpoint, uint8_t *data)
{
    uint32_t size = usb_read(USB_SIZE_EPOUT(endpoint));

    size = size > PACKET ? PACKET : size;
    transfer(USB_EPOUT_PTR(endpoint), USB_STARTEPOUT(endpoint), USB_ENDEPOUT(endpoint), data, size);
    return size;
}

/* A frame that was begun before this is nobody's any more. */
static void begin_anew(void)
{
    usb.received_size = 0u;
    usb.taken = 0u;
    usb.filled = 0u;
    usb.needs_end = 0u;
    usb.begins_anew = 1u;
}

static void look_for_packets(void)
{
    uint32_t done;

    if (usb_read(USB_EPDATA) != 0u) {
        clear_event(USB_EPDATA);
    }
    /* Also without the event, which is there once for all that came before it was cleared. */
    done = usb_read(USB_EPDATASTATUS);
    usb_write(USB_EPDATASTATUS, done);
    if ((done & 1u << BULK) != 0u) {
        usb.is_sending = 0u;
    }
    if ((done & 1u << (16u + BULK)) != 0u) {
        usb.packet_waits = 1u;
    }
}

static void configure(uint32_t configuration)
{
    usb.configuration = configuration;
    usb.halted_in = 0u;
    usb.halted_out = 0u;
    usb.is_open = 0u;
    look_for_packets();
    usb.packet_waits = 0u;
    begin_anew();
    usb_write(USB_EPINEN, configuration != 0u ? 1u | 1u << NOTIFICATIONS | 1u << BULK : 1u);
    usb_write(USB_EPOUTEN, configuration != 0u ? 1u | 1u << BULK : 1u);
    if (configuration != 0u) {
        usb_write(USB_EPSTALL, IN | BULK);
        usb_write(USB_EPSTALL, BULK);
        usb_write(USB_DTOGGLE, USB_DATA0 | IN | NOTIFICATIONS);
        usb_write(USB_DTOGGLE, USB_DATA0 | IN | BULK);
        usb_write(USB_DTOGGLE, USB_DATA0 | BULK);
        usb_write(USB_SIZE_EPOUT(BULK), 0u); /* any value: packets are welcome, and one that waits is dropped */
    }
}

/* The host begins anew with the device; packets of before are gone from the endpoints. */
static void begin_bus(void)
{
    usb.stage = IDLE;
    configure(0u);
    usb.is_sending = 0u;
}

static void accept(void)
{
    usb.stage = IDLE;
    usb_write(USB_EP0STATUS, 1u);
}

static void refuse(void)
{
    usb.stage = IDLE;
    usb_write(USB_EP0STALL, 1u);
}

static void send_answer(void)
{
    uint32_t size = usb.answer_size - usb.answer_sent;

    size = size > PACKET ? PACKET : size;
    send_packet(0u, answer + usb.answer_sent, size);
    usb.answer_sent += size;
    /* A host that asked for more knows the end by a packet that is not full. */
    usb.is_last = usb.answer_sent == usb.answer_size && (size < PACKET || usb.asks_for_more == 0u);
}

/* The first `length` bytes of what is in `answer`. */
static void reply(uint32_t size, uint32_t length)
{
    if (length == 0u) {
        accept();
        return;
    }
    usb.answer_size = size < length ? size : length;
    usb.answer_sent = 0u;
    usb.asks_for_more = size < length;
    usb.stage = SENDING;
    send_answer();
}

static uint32_t copied(const uint8_t *data, uint32_t size)
{
    uint32_t n;

    for (n = 0u; n < size; n++) {
        answer[n] = data[n];
    }
    return size;
}

static void add_letter(uint32_t letter)
{
    answer[answer[0]] = (uint8_t)letter;
    answer[answer[0] + 1u] = 0u;
    answer[0] = (uint8_t)(answer[0] + 2u);
}

/* Text number `index` as a descriptor; 0 if there is none. */
static uint32_t text_descriptor(uint32_t index)
{
    static const char *const texts[2] = { USB_MANUFACTURER, USB_PRODUCT };
    uint32_t n;

    answer[0] = 2u;
    answer[1] = 3u;
    if (index == 0u) {
        add_letter(0x09u); /* American English */
        answer[3] = 0x04u;
    } else if (index <= 2u) {
        for (n = 0u; texts[index - 1u][n] != '\0' && n < 60u; n++) {
            add_letter((uint32_t)texts[index - 1u][n]);
        }
    } else if (index == 3u) {
        for (n = 0u; n < 16u; n++) { /* the number of this very chip */
            uint32_t digit = chip_read(n < 8u ? CHIP_ID_HIGH : CHIP_ID_LOW) >> (28u - 4u * (n % 8u)) & 15u;
            add_letter(digit < 10u ? '0' + digit : 'A' + digit - 10u);
        }
    } else {
        return 0u;
    }
    return answer[0];
}

static void get_descriptor(const struct request *r)
{
    uint32_t kind = r->value >> 8, size = 0u;

    if (kind == 1u) {
        size = copied(device_descriptor, sizeof device_descriptor);
    } else if (kind == 2u && (r->value & 0xffu) == 0u) {
        size = copied(configuration_descriptor, sizeof configuration_descriptor);
    } else if (kind == 3u) {
        size = text_descriptor(r->value & 0xffu);
    }
    if (size == 0u) {
        refuse(); /* also other speeds: this device is a full-speed one alone */
    } else {
        reply(size, r->length);
    }
}

static uint32_t is_endpoint(uint32_t index)
{
    return index == 0u || index == IN
        || (usb.configuration != 0u && (index == BULK || index == (IN | BULK) || index == (IN | NOTIFICATIONS)));
}

static void set_halted(uint32_t index, uint32_t is_halted)
{
    uint32_t *halted = (index & IN) != 0u ? &usb.halted_in : &usb.halted_out, bit = 1u << (index & 7u);

    if ((index & 7u) == 0u) {
        return;
    }
    if (is_halted != 0u) {
        *halted |= bit;
        usb_write(USB_EPSTALL, USB_STALL | index);
    } else {
        *halted &= ~bit;
        usb_write(USB_DTOGGLE, USB_DATA0 | index);
        usb_write(USB_EPSTALL, index);
    }
}

static void standard_request(const struct request *r)
{
    uint32_t to = r->type & 0x1fu, is_in = r->type & IN, is_known = 1u;

    if (to == 2u && !is_endpoint(r->index)) {
        is_known = 0u;
    } else if (to == 1u && (r->index > 1u || usb.configuration == 0u)) {
        is_known = 0u;
    } else if (r->number == 0u && is_in && to <= 2u) { /* GET_STATUS */
        uint32_t halted = (r->index & IN) != 0u ? usb.halted_in : usb.halted_out;
        answer[0] = (uint8_t)(to == 2u ? halted >> (r->index & 7u) & 1u : 0u);
        answer[1] = 0u;
        reply(2u, r->length);
    } else if ((r->number == 1u || r->number == 3u) && r->type == 2u && r->value == 0u) { /* CLEAR, SET_FEATURE */
        set_halted(r->index, r->number == 3u);
        accept();
    } else if (r->number == 6u && r->type == IN) { /* GET_DESCRIPTOR */
        get_descriptor(r);
    } else if (r->number == 8u && r->type == IN) { /* GET_CONFIGURATION */
        answer[0] = (uint8_t)usb.configuration;
        reply(1u, r->length);
    } else if (r->number == 9u && r->type == 0u && r->value <= 1u) { /* SET_CONFIGURATION */
        configure(r->value);
        accept();
    } else if (r->number == 10u && r->type == (IN | 1u)) { /* GET_INTERFACE */
        answer[0] = 0u;
        reply(1u, r->length);
    } else if (r->number == 11u && r->type == 1u && r->value == 0u) { /* SET_INTERFACE */
        accept();
    } else {
        is_known = 0u;
    }
    if (!is_known) {
        refuse();
    }
}

/* A program on the host opens the line: what another one left half is dropped. The host sends nothing new before this
 * request is accepted. */
static void open_line(uint32_t is_open)
{
    if (is_open != 0u && usb.is_open == 0u) {
        look_for_packets();
        if (usb.packet_waits != 0u) {
            (void)receive_packet(BULK, received);
            usb.packet_waits = 0u;
        }
        begin_anew();
    }
    usb.is_open = is_open;
}

static void line_request(const struct request *r)
{
    if (usb.configuration == 0u || r->index != 0u) {
        refuse();
    } else if (r->number == 0x20u && r->type == 0x21u && r->length == LINE_CODING_BYTES) { /* SET_LINE_CODING */
        usb.stage = RECEIVING;
        usb_write(USB_EP0RCVOUT, 1u);
    } else if (r->number == 0x21u && r->type == 0xa1u) { /* GET_LINE_CODING */
        reply(copied(usb.line_coding, LINE_CODING_BYTES), r->length);
    } else if (r->number == 0x22u && r->type == 0x21u && r->length == 0u) { /* SET_CONTROL_LINE_STATE */
        open_line(r->value & 1u);
        accept();
    } else {
        refuse();
    }
}

static void answer_request(void)
{
    struct request r;

    r.type = usb_read(USB_BMREQUESTTYPE);
    r.number = usb_read(USB_BREQUEST);
    r.value = usb_read(USB_WVALUEL) | usb_read(USB_WVALUEL + 4u) << 8;
    r.index = usb_read(USB_WINDEXL) | usb_read(USB_WINDEXL + 4u) << 8;
    r.length = usb_read(USB_WLENGTHL) | usb_read(USB_WLENGTHL + 4u) << 8;
    usb.stage = IDLE;
    if ((r.type & 0x60u) == 0u) {
        if (r.type != 0u || r.number != 5u) { /* the peripheral answers SET_ADDRESS by itself */
            standard_request(&r);
        }
    } else if ((r.type & 0x60u) == 0x20u) {
        line_request(&r);
    } else {
        refuse();
    }
}

/* A packet of the data of a request has gone, or has come. */
static void go_on_with_request(void)
{
    uint32_t n, size;

    if (usb.stage == SENDING) {
        if (usb.is_last == 0u) {
            send_answer();
        } else {
            accept();
        }
    } else if (usb.stage == RECEIVING) {
        size = receive_packet(0u, answer);
        if (size != LINE_CODING_BYTES) {
            refuse();
            return;
        }
        for (n = 0u; n < size; n++) {
            usb.line_coding[n] = answer[n];
        }
        accept();
    }
}

/* Errata 171 and 187: without these writes around it, the peripheral may not start. */
static void set_hidden(uint32_t address, uint32_t value)
{
    uint32_t is_locked = chip_read(CHIP_LOCK) == 0u;

    if (is_locked) {
        chip_write(CHIP_LOCK, 0x9375u);
    }
    chip_write(address, value);
    if (is_locked) {
        chip_write(CHIP_LOCK, 0x9375u);
    }
}

static void attach(void)
{
    chip_write(CLOCK_STARTED, 0u);
    chip_write(CLOCK_START, 1u); /* USB needs the crystal */
    while (chip_read(CLOCK_STARTED) == 0u) {
    }
    set_hidden(CHIP_187, 3u);
    set_hidden(CHIP_171, 0xc0u);
    usb_write(USB_ENABLE, 1u);
    while ((usb_read(USB_EVENTCAUSE) & USB_READY) == 0u) {
    }
    usb_write(USB_EVENTCAUSE, USB_READY);
    set_hidden(CHIP_171, 0u);
    set_hidden(CHIP_187, 0u);
    while ((chip_read(POWER_USB) & POWER_USB_READY) == 0u) {
        if ((chip_read(POWER_USB) & POWER_USB_CABLE) == 0u) {
            usb_write(USB_ENABLE, 0u);
            return;
        }
    }
    begin_bus();
    usb_write(USB_PULLUP, 1u);
    usb.is_attached = 1u;
}

void serial_poll(void)
{
    uint32_t has_cable = chip_read(POWER_USB) & POWER_USB_CABLE;

    if (usb.is_attached == 0u) {
        if (has_cable != 0u) {
            attach();
        }
        return;
    }
    if (has_cable == 0u) {
        usb.is_attached = 0u;
        begin_bus();
        usb_write(USB_PULLUP, 0u);
        usb_write(USB_ENABLE, 0u);
        return;
    }
    if (usb_read(USB_USBRESET) != 0u) {
        clear_event(USB_USBRESET);
        clear_event(USB_EP0DATADONE);
        begin_bus();
    }
    if (usb_read(USB_EP0SETUP) != 0u) {
        clear_event(USB_EP0SETUP);
        clear_event(USB_EP0DATADONE); /* of a request that the host has given up */
        answer_request();
    } else if (usb_read(USB_EP0DATADONE) != 0u) {
        clear_event(USB_EP0DATADONE);
        go_on_with_request();
    }
    if (usb.configuration == 0u) {
        return;
    }
    look_for_packets();
    if (usb.packet_waits != 0u && usb.taken == usb.received_size && usb.begins_anew == 0u) {
        usb.packet_waits = 0u;
        usb.received_size = receive_packet(BULK, received);
        usb.taken = 0u;
    }
}

void serial_start(void)
{
    static const uint8_t coding[LINE_CODING_BYTES] = { 0x00, 0xc2, 0x01, 0x00, 0, 0, 8 }; /* 115200 baud, 8N1 */
    uint32_t n;

    for (n = 0u; n < LINE_CODING_BYTES; n++) {
        usb.line_coding[n] = coding[n];
    }
    serial_poll();
}

int32_t serial_get(void)
{
    while (usb.taken == usb.received_size) {
        if (usb.begins_anew != 0u) {
            usb.begins_anew = 0u;
            return SERIAL_BEGINS_ANEW;
        }
        serial_poll();
    }
    return received[usb.taken++];
}

/* Wait for the packet before, then send this one; without a reader there is nothing to wait for. */
static void send_filled(void)
{
    while (usb.is_sending != 0u && usb.begins_anew == 0u) {
        serial_poll();
    }
    if (usb.begins_anew == 0u) {
        usb.is_sending = 1u;
        usb.needs_end = usb.filled == PACKET;
        send_packet(BULK, to_send, usb.filled);
    }
    usb.filled = 0u;
}

void serial_put(uint8_t byte)
{
    if (usb.begins_anew == 0u) {
        to_send[usb.filled++] = byte;
        if (usb.filled == PACKET) {
            send_filled();
        }
    }
}

void serial_flush(void)
{
    /* After full packets alone, one of no bytes says that there are no more. */
    if (usb.filled > 0u || usb.needs_end != 0u) {
        send_filled();
    }
}
