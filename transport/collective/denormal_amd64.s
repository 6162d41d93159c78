#include "textflag.h"

// func control() uint64
TEXT ·control(SB), NOSPLIT, $0-8
	MOVQ    $0, ret+0(FP)
	STMXCSR ret+0(FP)
	RET

// func setControl(word uint64)
TEXT ·setControl(SB), NOSPLIT, $0-8
	LDMXCSR word+0(FP)
	RET
