#include "textflag.h"

// Start is where a sentry begins, before Go does: with one thread. It drops the
// bounding set, and all capabilities but CAP_SYS_CHROOT and CAP_SYS_ADMIN (18, 21).
// Whoever is after that has seen to it that they were dropped, so there is no error
// to return. Registers are the kernel's, and the stack begins with argc and argv.
TEXT ·Start(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVQ 8(SP), AX
	MOVQ $0x61732d63736e7572, CX // "runsc-sa"
	CMPQ CX, (AX)
	JNE  begin

	MOVQ $157, AX        // prctl
	MOVQ $15, DI         // PR_SET_NAME: of this thread, after which others are called
	LEAQ ·title(SB), SI
	SYSCALL

	XORQ BX, BX
drop:
	MOVQ $157, AX
	MOVQ $24, DI         // PR_CAPBSET_DROP
	MOVQ BX, SI
	SYSCALL
	INCQ BX
	TESTQ AX, AX
	JEQ  drop
	CMPQ AX, $-22        // EINVAL: it was the last
	JNE  begin

	MOVQ $126, AX        // capset
	LEAQ ·capHeader(SB), DI
	LEAQ ·capData(SB), SI
	SYSCALL

begin:
	JMP  _rt0_amd64_linux(SB)

DATA ·title+0(SB)/8, $"cay-sent"
DATA ·title+8(SB)/8, $"ry\x00\x00\x00\x00\x00\x00"
GLOBL ·title(SB), RODATA|NOPTR, $16

DATA ·capHeader+0(SB)/4, $0x20080522 // _LINUX_CAPABILITY_VERSION_3
DATA ·capHeader+4(SB)/4, $0          // this thread
GLOBL ·capHeader(SB), RODATA|NOPTR, $8

// Effective, permitted, inheritable; and of capabilities above 31.
DATA ·capData+0(SB)/4, $0x240000
DATA ·capData+4(SB)/4, $0x240000
DATA ·capData+8(SB)/4, $0x240000
DATA ·capData+12(SB)/4, $0
DATA ·capData+16(SB)/8, $0
GLOBL ·capData(SB), RODATA|NOPTR, $24
