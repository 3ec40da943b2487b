"""Two backends for rlx that come from another package: `abacus` computes ops, `slate` runs kernels that rlx writes."""
