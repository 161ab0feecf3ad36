// Detection of the host and construction of named targets.
#include "codegen/llvm/target.h"

#include <llvm/ADT/StringMap.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/TargetParser/Triple.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "ir/error.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ingot::codegen {

namespace {

/// Linux hands out the AMX tile registers (8 KiB of state) only to processes that ask.
bool request_amx() {
#if defined(__linux__) && defined(__x86_64__)
    constexpr long kArchReqXcompPerm = 0x1023;
    constexpr long kXfeatureXtiledata = 18;
    return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
#else
    return false;
#endif
}

std::size_t parse_size(const std::string& text) {
    std::size_t value = 0;
    std::size_t i = 0;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i)
        value = value * 10 + static_cast<std::size_t>(text[i] - '0');
    if (i < text.size() && text[i] == 'K') value <<= 10;
    if (i < text.size() && text[i] == 'M') value <<= 20;
    return value;
}

/// Data cache sizes by level from sysfs, which also knows them on Arm and under most hypervisors.
void read_caches(TargetInfo& t) {
    for (int index = 0; index < 8; ++index) {
        const std::string dir =
            "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
        std::string level, type, size;
        std::ifstream(dir + "level") >> level;
        std::ifstream(dir + "type") >> type;
        std::ifstream(dir + "size") >> size;
        if (level.empty()) break;
        const std::size_t bytes = parse_size(size);
        if (bytes == 0 || type == "Instruction") continue;
        if (level == "1") t.l1_bytes = bytes;
        if (level == "2") t.l2_bytes = bytes;
        if (level == "3") t.l3_bytes = bytes;
    }
}

unsigned usable_cores() {
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return static_cast<unsigned>(CPU_COUNT(&set));
#endif
    return std::max(1u, std::thread::hardware_concurrency());
}

/// As the processor itself says; a name would have to be known.
Maker detect_maker() {
#ifdef __x86_64__
    unsigned highest = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(0, &highest, &b, &c, &d) == 0) return Maker::Other;
    // The name's first four letters: "GenuineIntel", "AuthenticAMD".
    if (b == signature_INTEL_ebx) return Maker::Intel;
    if (b == signature_AMD_ebx) return Maker::Amd;
#endif
    return Maker::Other;
}

std::string join_features(const std::map<std::string, bool>& features) {
    std::string text;
    for (const auto& [name, on] : features) {
        if (!text.empty()) text += ',';
        text += on ? '+' : '-';
        text += name;
    }
    return text;
}

const llvm::Target& lookup_target(const std::string& triple) {
    std::string message;
    const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, message);
    if (!target) throw NotSupported("LLVM has no target for " + triple + ": " + message);
    return *target;
}

/// Fills the flags from what LLVM says that the processor plus the feature string imply.
void derive_flags(TargetInfo& t) {
    const llvm::Target& target = lookup_target(t.triple);
    std::unique_ptr<llvm::MCSubtargetInfo> info(target.createMCSubtargetInfo(t.triple, "", ""));
    // Asked first, because LLVM itself prints to stderr and takes another processor instead.
    if (!info || !info->isCPUStringValid(t.cpu))
        throw UserError("unknown processor \"" + t.cpu + "\" for " + t.triple);
    info.reset(target.createMCSubtargetInfo(t.triple, t.cpu, t.features));
    const auto has = [&](const char* feature) {
        return info->checkFeatures(std::string("+") + feature);
    };
    switch (t.arch) {
        case Arch::X86_64:
            t.fma = has("fma");
            t.f16c = has("f16c");
            t.avx2 = has("avx2");
            t.avx512f = has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl");
            t.avx512bf16 = t.avx512f && has("avx512bf16");
            t.avx512fp16 = t.avx512f && has("avx512fp16");
            t.avx512vnni = t.avx512f && has("avx512vnni");
            t.amx_tile = has("amx-tile");
            t.amx_bf16 = t.amx_tile && has("amx-bf16");
            t.amx_int8 = t.amx_tile && has("amx-int8");
            t.vector_bits = t.avx512f ? 512 : has("avx") ? 256 : 128;
            break;
        case Arch::AArch64:
            t.neon = has("neon");
            t.fma = t.f16c = t.neon;
            t.vector_bits = 128;
            break;
        case Arch::Nvptx:
            t.fma = t.f16c = true;
            t.vector_bits = 32;
            t.l1_bytes = 128 << 10;
            t.l2_bytes = t.l3_bytes = 32 << 20;
            break;
    }
}

bool starts_with(std::string_view text, std::string_view prefix) {
    return text.substr(0, prefix.size()) == prefix;
}

}  // namespace

void initialize_llvm() {
    static std::once_flag once;
    std::call_once(once, [] {
        LLVMInitializeX86TargetInfo();
        LLVMInitializeX86Target();
        LLVMInitializeX86TargetMC();
        LLVMInitializeX86AsmPrinter();
        LLVMInitializeX86AsmParser();
        LLVMInitializeNVPTXTargetInfo();
        LLVMInitializeNVPTXTarget();
        LLVMInitializeNVPTXTargetMC();
        LLVMInitializeNVPTXAsmPrinter();
        LLVMInitializeAArch64TargetInfo();
        LLVMInitializeAArch64Target();
        LLVMInitializeAArch64TargetMC();
        LLVMInitializeAArch64AsmPrinter();
    });
}

std::string TargetInfo::key() const {
    return triple + '|' + cpu + '|' + features + '|' + std::to_string(vector_bits);
}

TargetInfo host() {
    initialize_llvm();
    TargetInfo t;
    const llvm::Triple triple(llvm::sys::getProcessTriple());
    t.triple = triple.str();
    if (triple.getArch() == llvm::Triple::x86_64) {
        t.arch = Arch::X86_64;
    } else if (triple.getArch() == llvm::Triple::aarch64) {
        t.arch = Arch::AArch64;
    } else {
        throw NotSupported("no code generation for " + t.triple);
    }
    t.cpu = llvm::sys::getHostCPUName().str();
    std::map<std::string, bool> features;
    for (const auto& entry : llvm::sys::getHostCPUFeatures())
        features[entry.getKey().str()] = entry.getValue();
    if (features["amx-tile"] && !request_amx())
        for (auto& [name, on] : features)
            if (starts_with(name, "amx")) on = false;
    t.features = join_features(features);
    derive_flags(t);
    read_caches(t);
    t.cores = usable_cores();
    t.maker = detect_maker();
    return t;
}

TargetInfo target_named(std::string_view name) {
    initialize_llvm();
    TargetInfo t;
    t.cpu = std::string(name);
    if (starts_with(name, "sm_")) {
        t.arch = Arch::Nvptx;
        t.triple = "nvptx64-nvidia-cuda";
        t.features = "+ptx80";
    } else if (name == "aarch64" || starts_with(name, "neoverse") || starts_with(name, "cortex") ||
               starts_with(name, "apple") || starts_with(name, "ampere")) {
        t.arch = Arch::AArch64;
        t.triple = "aarch64-unknown-linux-gnu";
        if (name == "aarch64") t.cpu = "generic";
        t.features = "+neon";
    } else {
        t.arch = Arch::X86_64;
        t.triple = "x86_64-unknown-linux-gnu";
    }
    derive_flags(t);
    return t;
}

}  // namespace ingot::codegen
