/* A loop during which all vector registers, all general registers except rsp, and the red zone
 * contain known values. */
#ifndef REGISTERS_H
#define REGISTERS_H

#include <stdint.h>

/* Order: rax rbx rcx rdx rsi rdi rbp r8 r9 r10 r11 r12 r13 r14 r15 */
extern uint64_t registers_in[15], registers_out[15], registers_spins, registers_stack[2], registers_zone[2];
extern unsigned char vectors_in[512], vectors_out[512];
void registers_spin(void);

__asm__(".bss\n"
	".balign 64\n"
	".globl vectors_in, vectors_out, registers_in, registers_out, registers_spins, registers_stack, registers_zone\n"
	"vectors_in: .skip 512\n"
	"vectors_out: .skip 512\n"
	"registers_in: .skip 120\n"
	"registers_out: .skip 120\n"
	"registers_spins: .skip 8\n"
	"registers_stack: .skip 16\n"
	"registers_zone: .skip 16\n"
	".text\n"
	".globl registers_spin\n"
	"registers_spin:\n"
	"push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
	".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
	"vmovdqa vectors_in+32*\\n(%rip), %ymm\\n\n"
	".endr\n"
	"movq %rsp, registers_stack(%rip)\n"
	"movabs $0x5a5a1234abcd0001, %rax\n"
	"movq %rax, -8(%rsp)\n"
	"incq %rax\n"
	"movq %rax, -128(%rsp)\n"
	"movq registers_in+8(%rip), %rbx\n movq registers_in+16(%rip), %rcx\n movq registers_in+24(%rip), %rdx\n"
	"movq registers_in+32(%rip), %rsi\n movq registers_in+40(%rip), %rdi\n movq registers_in+48(%rip), %rbp\n"
	"movq registers_in+56(%rip), %r8\n movq registers_in+64(%rip), %r9\n movq registers_in+72(%rip), %r10\n"
	"movq registers_in+80(%rip), %r11\n movq registers_in+88(%rip), %r12\n movq registers_in+96(%rip), %r13\n"
	"movq registers_in+104(%rip), %r14\n movq registers_in+112(%rip), %r15\n movq registers_in(%rip), %rax\n"
	"1: decq registers_spins(%rip)\n jnz 1b\n"
	"movq %rax, registers_out(%rip)\n movq %rbx, registers_out+8(%rip)\n movq %rcx, registers_out+16(%rip)\n"
	"movq %rdx, registers_out+24(%rip)\n movq %rsi, registers_out+32(%rip)\n movq %rdi, registers_out+40(%rip)\n"
	"movq %rbp, registers_out+48(%rip)\n movq %r8, registers_out+56(%rip)\n movq %r9, registers_out+64(%rip)\n"
	"movq %r10, registers_out+72(%rip)\n movq %r11, registers_out+80(%rip)\n movq %r12, registers_out+88(%rip)\n"
	"movq %r13, registers_out+96(%rip)\n movq %r14, registers_out+104(%rip)\n movq %r15, registers_out+112(%rip)\n"
	"movq %rsp, registers_stack+8(%rip)\n"
	"movq -8(%rsp), %rax\n movq %rax, registers_zone(%rip)\n"
	"movq -128(%rsp), %rax\n movq %rax, registers_zone+8(%rip)\n"
	".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
	"vmovdqa %ymm\\n, vectors_out+32*\\n(%rip)\n"
	".endr\n"
	"vzeroupper\n"
	"pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
	"ret\n");

#endif
