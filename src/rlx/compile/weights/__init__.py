"""Work that depends on weights alone: split off, packed and joined before the first run."""
