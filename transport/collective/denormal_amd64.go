package collective

// flushBits of MXCSR: results that are too small become zero (FTZ), and so do such
// operands (DAZ).
const flushBits = 1<<15 | 1<<6
