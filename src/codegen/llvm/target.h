// What is known about the machine that code is generated for: instruction set, preferred vector
// width, caches, cores. A plain value, made once by the caller and handed down; the host's
// description costs about 0.1 ms. First thing that code generation looks at: the schedule asks it
// for tile sizes, the emitters for vector widths, the Jit for LLVM's target.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace ingot::codegen {

enum class Arch { X86_64, AArch64, Nvptx };
/// Who made the processor: libraries have code of different worth for each.
enum class Maker { Other, Intel, Amd };

struct TargetInfo {
    Arch arch = Arch::X86_64;
    std::string triple;    ///< LLVM target triple
    std::string cpu;       ///< LLVM processor name, e.g. "znver4", "x86-64-v3", "sm_90"
    std::string features;  ///< LLVM feature string, sorted, e.g. "+avx2,-avx512f"

    unsigned vector_bits =
        128;  ///< preferred width of explicit vectors; 32 on a GPU: one lane a thread
    bool fma = false;
    bool f16c = false;
    bool avx2 = false;
    bool avx512f = false;  ///< with bw, dq and vl, or it is reported as absent
    bool avx512bf16 = false;
    bool avx512fp16 = false;
    bool avx512vnni = false;
    bool amx_tile = false;  ///< the kernel has granted the tile registers to this process
    bool amx_bf16 = false;
    bool amx_int8 = false;
    bool neon = false;

    std::size_t l1_bytes = 32 << 10;
    std::size_t l2_bytes = 512 << 10;
    std::size_t l3_bytes =
        8 << 20;         ///< the last level's slice that this process can see, shared by all cores
    unsigned cores = 1;  ///< processors this process may run on
    Maker maker = Maker::Other;

    /// Elements of `element_bytes` bytes in one preferred vector; at least 1.
    unsigned lanes(unsigned element_bytes) const {
        const unsigned n = vector_bits / 8 / element_bytes;
        return n == 0 ? 1 : n;
    }
    /// Number of architectural vector registers of the preferred width.
    unsigned vector_registers() const { return arch == Arch::X86_64 && !avx512f ? 16 : 32; }
    bool is_gpu() const { return arch == Arch::Nvptx; }
    /// 90 for "sm_90"; only of a GPU.
    int gpu_capability() const { return std::stoi(cpu.substr(3)); }
    /// Whether this machine has all that code for `target` may use.
    bool can_run(const TargetInfo& target) const {
        return arch == target.arch && (fma || !target.fma) && (f16c || !target.f16c) &&
               (avx2 || !target.avx2) && (avx512f || !target.avx512f) &&
               (avx512bf16 || !target.avx512bf16) && (avx512fp16 || !target.avx512fp16) &&
               (avx512vnni || !target.avx512vnni) && (amx_tile || !target.amx_tile) &&
               (amx_bf16 || !target.amx_bf16) && (amx_int8 || !target.amx_int8);
    }
    /// Names everything that changes the machine code; a part of the disk cache's keys.
    std::string key() const;
};

/// Registers LLVM's targets; called by everything here that needs them. Safe from many threads,
/// done once.
void initialize_llvm();

/// The machine this process runs on.
TargetInfo host();

/// A target by name: "x86-64-v2", "x86-64-v3", "x86-64-v4", an x86 processor name such as "znver4"
/// or "sapphirerapids", "sm_90" and its kin, "aarch64" or an Arm processor such as "neoverse-v1".
/// Throws UserError for a name LLVM does not know.
TargetInfo target_named(std::string_view name);

}  // namespace ingot::codegen
