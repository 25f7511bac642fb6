#include "go_asm.h"
#include "textflag.h"

// The child has the parent's memory and its stack, on which it puts nothing. The
// parent stands still until the child executes a program or ends.
//
// func vfork(c *child) int
TEXT ·vfork(SB), NOSPLIT, $0-16
	MOVQ c+0(FP), R12
	MOVQ (child_made+call_number)(R12), AX
	MOVQ (child_made+call_args+0)(R12), DI
	MOVQ (child_made+call_args+8)(R12), SI
	SYSCALL
	TESTQ AX, AX
	JZ   begin
	MOVQ AX, ret+8(FP)
	RET

begin:
	LEAQ child_calls(R12), R13

next:
	MOVQ (call_number)(R13), AX
	MOVQ (call_args+0)(R13), DI
	MOVQ (call_args+8)(R13), SI
	MOVQ (call_args+16)(R13), DX
	SYSCALL
	CMPQ AX, $0xfffffffffffff001
	JCC  failed
	ADDQ $call__size, R13
	JMP  next

failed:
	NEGQ AX
	MOVQ AX, child_errno(R12)
	MOVL $127, DI
	MOVL $60, AX // exit
	SYSCALL
	INT  $3
