// See build_identity.h. ELF: the note NT_GNU_BUILD_ID in the program header table of the object
// that is mapped here.
#include "codegen/llvm/build_identity.h"

#include <cstdint>
#include <cstring>
#include <string_view>

#ifdef __linux__
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/stat.h>
#endif

namespace ingot::codegen {

#ifdef __linux__
namespace {

std::string to_hex(const std::uint8_t* bytes, std::size_t count) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    for (std::size_t k = 0; k < count; ++k) {
        text += digits[bytes[k] >> 4];
        text += digits[bytes[k] & 15];
    }
    return text;
}

/// The build id among the notes in [at, end), or nothing.
std::string find_build_id(const std::uint8_t* at, const std::uint8_t* end) {
    while (end - at >= static_cast<std::ptrdiff_t>(sizeof(ElfW(Nhdr)))) {
        ElfW(Nhdr) note;
        std::memcpy(&note, at, sizeof note);
        const std::uint8_t* name = at + sizeof note;
        const std::uint8_t* content = name + (note.n_namesz + 3) / 4 * 4;
        const std::uint8_t* next = content + (note.n_descsz + 3) / 4 * 4;
        if (next > end) break;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && !std::memcmp(name, "GNU", 4))
            return to_hex(content, note.n_descsz);
        at = next;
    }
    return {};
}

struct Search {
    std::uintptr_t address;
    std::string id;
};

int visit_object(dl_phdr_info* info, std::size_t /*size*/, void* data) {
    auto& search = *static_cast<Search*>(data);
    bool ours = false;
    for (int k = 0; k < info->dlpi_phnum; ++k) {
        const ElfW(Phdr)& header = info->dlpi_phdr[k];
        const std::uintptr_t start = info->dlpi_addr + header.p_vaddr;
        ours |= header.p_type == PT_LOAD && search.address >= start &&
                search.address < start + header.p_memsz;
    }
    if (!ours) return 0;
    for (int k = 0; k < info->dlpi_phnum && search.id.empty(); ++k) {
        const ElfW(Phdr)& header = info->dlpi_phdr[k];
        if (header.p_type != PT_NOTE) continue;
        const auto* notes = reinterpret_cast<const std::uint8_t*>(info->dlpi_addr + header.p_vaddr);
        search.id = find_build_id(notes, notes + header.p_memsz);
    }
    return 1;
}

}  // namespace
#endif

std::string build_identity() {
#ifdef __linux__
    Search search{reinterpret_cast<std::uintptr_t>(&build_identity), {}};
    dl_iterate_phdr(visit_object, &search);
    if (!search.id.empty()) return search.id;
    Dl_info where;
    struct stat file;
    if (dladdr(reinterpret_cast<void*>(&build_identity), &where) && where.dli_fname &&
        ::stat(where.dli_fname, &file) == 0)
        return std::string(where.dli_fname) + '|' + std::to_string(file.st_size) + '|' +
               std::to_string(file.st_mtime);
#endif
    return "unknown build";
}

}  // namespace ingot::codegen
