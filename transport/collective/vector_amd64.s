#include "textflag.h"

// FOLD folds 128 bytes of in into acc at a time; n is a multiple of 128.
#define FOLD(name, op) \
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
	op (SI), Y0, Y0 \
	op 32(SI), Y1, Y1 \
	op 64(SI), Y2, Y2 \
	op 96(SI), Y3, Y3 \
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

FOLD(·addI8AVX, VPADDB)
FOLD(·addI16AVX, VPADDW)
FOLD(·addI32AVX, VPADDD)
FOLD(·addI64AVX, VPADDQ)
FOLD(·addF32AVX, VADDPS)
FOLD(·addF64AVX, VADDPD)
FOLD(·mulI16AVX, VPMULLW)
FOLD(·mulI32AVX, VPMULLD)
FOLD(·mulF32AVX, VMULPS)
FOLD(·mulF64AVX, VMULPD)
FOLD(·minS8AVX, VPMINSB)
FOLD(·minU8AVX, VPMINUB)
FOLD(·minS16AVX, VPMINSW)
FOLD(·minU16AVX, VPMINUW)
FOLD(·minS32AVX, VPMINSD)
FOLD(·minU32AVX, VPMINUD)
FOLD(·maxS8AVX, VPMAXSB)
FOLD(·maxU8AVX, VPMAXUB)
FOLD(·maxS16AVX, VPMAXSW)
FOLD(·maxU16AVX, VPMAXUW)
FOLD(·maxS32AVX, VPMAXSD)
FOLD(·maxU32AVX, VPMAXUD)
FOLD(·andAVX, VPAND)
FOLD(·orAVX, VPOR)
FOLD(·xorAVX, VPXOR)

// PICK replaces an element of acc, of Y0, by that of in, of Y1, where one is less: (a, b) is (Y0, Y1) for a minimum and
// (Y1, Y0) for a maximum. Neither of a NaN and another is less, so NaN stays out. Y15 is -0 in each element: adding it
// makes a denormal element zero, and changes no other.
#define PICK(name, shift, bits, compare, add, blend, a, b) \
TEXT name(SB), NOSPLIT, $0-24 \
	MOVQ acc+0(FP), DI \
	MOVQ in+8(FP), SI \
	MOVQ n+16(FP), CX \
	VPCMPEQD Y15, Y15, Y15 \
	shift bits, Y15, Y15 \
next: \
	SUBQ $32, CX \
	JLT  done \
	VMOVUPS (DI), Y0 \
	VMOVUPS (SI), Y1 \
	compare $0x11, a, b, Y2 \
	add Y15, Y1, Y1 \
	blend Y2, Y1, Y0, Y0 \
	VMOVUPS Y0, (DI) \
	ADDQ $32, SI \
	ADDQ $32, DI \
	JMP  next \
done: \
	VZEROUPPER \
	RET

PICK(·minF32AVX, VPSLLD, $31, VCMPPS, VADDPS, VBLENDVPS, Y0, Y1)
PICK(·maxF32AVX, VPSLLD, $31, VCMPPS, VADDPS, VBLENDVPS, Y1, Y0)
PICK(·minF64AVX, VPSLLQ, $63, VCMPPD, VADDPD, VBLENDVPD, Y0, Y1)
PICK(·maxF64AVX, VPSLLQ, $63, VCMPPD, VADDPD, VBLENDVPD, Y1, Y0)

// SUM adds count inputs, one at least, to acc: 128 bytes of all of them before the next 128, so that acc is read and
// written once. ins is the first of count slices, of which only where they begin is used; n is a multiple of 128, not 0.
#define SUM(name, op) \
TEXT name(SB), NOSPLIT, $0-32 \
	MOVQ acc+0(FP), DI \
	MOVQ ins+8(FP), BX \
	MOVQ count+16(FP), R8 \
	MOVQ n+24(FP), CX \
	LEAQ (R8)(R8*2), R8 \
	LEAQ (BX)(R8*8), R8 \
	XORQ DX, DX \
next: \
	VMOVUPS (DI)(DX*1), Y0 \
	VMOVUPS 32(DI)(DX*1), Y1 \
	VMOVUPS 64(DI)(DX*1), Y2 \
	VMOVUPS 96(DI)(DX*1), Y3 \
	MOVQ BX, R9 \
input: \
	MOVQ (R9), SI \
	op (SI)(DX*1), Y0, Y0 \
	op 32(SI)(DX*1), Y1, Y1 \
	op 64(SI)(DX*1), Y2, Y2 \
	op 96(SI)(DX*1), Y3, Y3 \
	ADDQ $24, R9 \
	CMPQ R9, R8 \
	JNE  input \
	VMOVUPS Y0, (DI)(DX*1) \
	VMOVUPS Y1, 32(DI)(DX*1) \
	VMOVUPS Y2, 64(DI)(DX*1) \
	VMOVUPS Y3, 96(DI)(DX*1) \
	ADDQ $128, DX \
	CMPQ DX, CX \
	JLT  next \
	VZEROUPPER \
	RET

SUM(·sumI8AVX, VPADDB)
SUM(·sumI16AVX, VPADDW)
SUM(·sumI32AVX, VPADDD)
SUM(·sumI64AVX, VPADDQ)
SUM(·sumF32AVX, VADDPS)
SUM(·sumF64AVX, VADDPD)

// FIRST writes 0 + a + b into acc, 128 bytes at a time; n is a multiple of 128. Zero is the first term since -0 is not
// the sum of two -0 then.
#define FIRST(name, op) \
TEXT name(SB), NOSPLIT, $0-32 \
	MOVQ acc+0(FP), DI \
	MOVQ a+8(FP), SI \
	MOVQ b+16(FP), BX \
	MOVQ n+24(FP), CX \
	XORQ DX, DX \
	VPXOR Y15, Y15, Y15 \
next: \
	CMPQ DX, CX \
	JGE  done \
	op (SI)(DX*1), Y15, Y0 \
	op 32(SI)(DX*1), Y15, Y1 \
	op 64(SI)(DX*1), Y15, Y2 \
	op 96(SI)(DX*1), Y15, Y3 \
	op (BX)(DX*1), Y0, Y0 \
	op 32(BX)(DX*1), Y1, Y1 \
	op 64(BX)(DX*1), Y2, Y2 \
	op 96(BX)(DX*1), Y3, Y3 \
	VMOVUPS Y0, (DI)(DX*1) \
	VMOVUPS Y1, 32(DI)(DX*1) \
	VMOVUPS Y2, 64(DI)(DX*1) \
	VMOVUPS Y3, 96(DI)(DX*1) \
	ADDQ $128, DX \
	JMP  next \
done: \
	VZEROUPPER \
	RET

FIRST(·firstI8AVX, VPADDB)
FIRST(·firstI16AVX, VPADDW)
FIRST(·firstI32AVX, VPADDD)
FIRST(·firstI64AVX, VPADDQ)
FIRST(·firstF32AVX, VADDPS)
FIRST(·firstF64AVX, VADDPD)

// FOLD16 folds f16 as f32, and rounds to nearest even: 64 bytes of in at a time; n is a multiple of 64. op gets the
// elements of a first, and those of b second: where one is not less or greater, or one is NaN, a minimum or maximum is
// the second. No f32 here is denormal, so nothing is flushed to zero.
#define FOLD16(name, op, a, b) \
TEXT name(SB), NOSPLIT, $0-24 \
	MOVQ acc+0(FP), DI \
	MOVQ in+8(FP), SI \
	MOVQ n+16(FP), CX \
next: \
	SUBQ $64, CX \
	JLT  done \
	VCVTPH2PS (a), Y0 \
	VCVTPH2PS 16(a), Y1 \
	VCVTPH2PS 32(a), Y2 \
	VCVTPH2PS 48(a), Y3 \
	VCVTPH2PS (b), Y4 \
	VCVTPH2PS 16(b), Y5 \
	VCVTPH2PS 32(b), Y6 \
	VCVTPH2PS 48(b), Y7 \
	op Y4, Y0, Y0 \
	op Y5, Y1, Y1 \
	op Y6, Y2, Y2 \
	op Y7, Y3, Y3 \
	VCVTPS2PH $0, Y0, (DI) \
	VCVTPS2PH $0, Y1, 16(DI) \
	VCVTPS2PH $0, Y2, 32(DI) \
	VCVTPS2PH $0, Y3, 48(DI) \
	ADDQ $64, SI \
	ADDQ $64, DI \
	JMP  next \
done: \
	VZEROUPPER \
	RET

FOLD16(·addF16AVX, VADDPS, DI, SI)
FOLD16(·mulF16AVX, VMULPS, DI, SI)
FOLD16(·minF16AVX, VMINPS, SI, DI)
FOLD16(·maxF16AVX, VMAXPS, SI, DI)

// firstF16AVX writes 0 + a + b of f16 into acc, 64 bytes at a time; n is a multiple of 64. 0 + a needs no rounding.
TEXT ·firstF16AVX(SB), NOSPLIT, $0-32
	MOVQ acc+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), BX
	MOVQ n+24(FP), CX
	XORQ DX, DX
	VPXOR Y15, Y15, Y15
next:
	CMPQ DX, CX
	JGE  done
	VCVTPH2PS (SI)(DX*1), Y0
	VCVTPH2PS 16(SI)(DX*1), Y1
	VCVTPH2PS 32(SI)(DX*1), Y2
	VCVTPH2PS 48(SI)(DX*1), Y3
	VCVTPH2PS (BX)(DX*1), Y4
	VCVTPH2PS 16(BX)(DX*1), Y5
	VCVTPH2PS 32(BX)(DX*1), Y6
	VCVTPH2PS 48(BX)(DX*1), Y7
	VADDPS Y0, Y15, Y0
	VADDPS Y1, Y15, Y1
	VADDPS Y2, Y15, Y2
	VADDPS Y3, Y15, Y3
	VADDPS Y4, Y0, Y0
	VADDPS Y5, Y1, Y1
	VADDPS Y6, Y2, Y2
	VADDPS Y7, Y3, Y3
	VCVTPS2PH $0, Y0, (DI)(DX*1)
	VCVTPS2PH $0, Y1, 16(DI)(DX*1)
	VCVTPS2PH $0, Y2, 32(DI)(DX*1)
	VCVTPS2PH $0, Y3, 48(DI)(DX*1)
	ADDQ $64, DX
	JMP  next
done:
	VZEROUPPER
	RET
