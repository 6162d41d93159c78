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
	SFENCE
	VZEROUPPER
	RET

// The sums add 128 bytes of in to acc at a time; n is a multiple of 128.
#define SUM(name, add) \
TEXT name(SB), NOSPLIT, $0-24 \
	MOVQ acc+0(FP), DI \
	MOVQ in+8(FP), SI \
	MOVQ n+16(FP), CX \
next: \
	SUBQ $128, CX \
	JLT  done \
	VMOVUPS (DI), Y0 \
	VMOVUPS 32(DI), Y1 \
	VMOVUPS 64(DI), Y2 \
	VMOVUPS 96(DI), Y3 \
	add (SI), Y0, Y0 \
	add 32(SI), Y1, Y1 \
	add 64(SI), Y2, Y2 \
	add 96(SI), Y3, Y3 \
	VMOVUPS Y0, (DI) \
	VMOVUPS Y1, 32(DI) \
	VMOVUPS Y2, 64(DI) \
	VMOVUPS Y3, 96(DI) \
	ADDQ $128, SI \
	ADDQ $128, DI \
	JMP  next \
done: \
	VZEROUPPER \
	RET

// func sumF32AVX(acc, in *byte, n int)
SUM(·sumF32AVX, VADDPS)

// func sumF64AVX(acc, in *byte, n int)
SUM(·sumF64AVX, VADDPD)

// func sumI32AVX(acc, in *byte, n int)
SUM(·sumI32AVX, VPADDD)

// func sumI64AVX(acc, in *byte, n int)
SUM(·sumI64AVX, VPADDQ)
