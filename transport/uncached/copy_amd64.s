#include "textflag.h"

// func streamAVX(dst, src *byte, n int)
// n is a multiple of 128, dst of 32.
TEXT ·streamAVX(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
stream:
	SUBQ $128, CX
	JLT  streamed
	PREFETCHT0 1024(SI)
	PREFETCHT0 1088(SI)
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	VMOVNTDQ Y2, 64(DI)
	VMOVNTDQ Y3, 96(DI)
	ADDQ $128, SI
	ADDQ $128, DI
	JMP  stream
streamed:
	VZEROUPPER
	RET

// func fence()
TEXT ·fence(SB), NOSPLIT, $0
	SFENCE
	RET
