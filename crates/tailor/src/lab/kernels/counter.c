// Plugin of qemu: counts instructions in user space and in the kernel. `tailor compare --kernel` compiles it with the
// machine's C compiler. The functions are declared here, because distributions do not package qemu's header.
//
// Addresses of the kernel have their highest bit set. Counting is by blocks of instructions, which have no jump within.
// When the guest runs an instruction with the mark as its 64-bit operand, the counts are written to a file.

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*vcpu_callback)(unsigned int, void *);
typedef void (*translation_callback)(qemu_plugin_id_t, struct qemu_plugin_tb *);

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, translation_callback);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, vcpu_callback, int flags, void *);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, vcpu_callback, int flags, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);

#if API >= 3
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);
#else
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
#endif

__attribute__((visibility("default"))) int qemu_plugin_version = API;

enum { MARKED_SIZE = 10 };

static const uint64_t mark = MARK;
static uint64_t user_count, kernel_count;
static FILE *out;

static void count_user(unsigned int cpu, void *count)
{
    user_count += (uintptr_t)count;
}

static void count_kernel(unsigned int cpu, void *count)
{
    kernel_count += (uintptr_t)count;
}

static void on_mark(unsigned int cpu, void *unused)
{
    fprintf(out, "%" PRIu64 " %" PRIu64 "\n", user_count, kernel_count);
    fflush(out);
}

static bool is_mark(const struct qemu_plugin_insn *instruction)
{
    if (qemu_plugin_insn_size(instruction) != MARKED_SIZE)
        return false;
#if API >= 3
    unsigned char data[MARKED_SIZE] = {0};
    qemu_plugin_insn_data(instruction, data, sizeof data);
#else
    const unsigned char *data = qemu_plugin_insn_data(instruction);
#endif
    return memcmp(data + MARKED_SIZE - sizeof mark, &mark, sizeof mark) == 0;
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    size_t count = qemu_plugin_tb_n_insns(block);
    bool is_kernel = qemu_plugin_tb_vaddr(block) >> 63;
    qemu_plugin_register_vcpu_tb_exec_cb(block, is_kernel ? count_kernel : count_user, 0, (void *)count);
    for (size_t index = 0; index < count && !is_kernel; index++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, index);
        if (is_mark(instruction))
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_mark, 0, NULL);
    }
}

// The only argument is `out=FILE`.
__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc,
                                                               char **argv)
{
    out = argc == 1 && strncmp(argv[0], "out=", 4) == 0 ? fopen(argv[0] + 4, "w") : NULL;
    if (!out)
        return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return 0;
}
