package collective

// flushBits of FPCR: results and operands that are too small become zero (FZ).
const flushBits = 1 << 24
