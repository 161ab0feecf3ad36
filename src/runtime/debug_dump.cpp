// See debug_dump.h.
#include "runtime/debug_dump.h"

#include <unistd.h>

#include <fstream>

namespace ingot::runtime {

DebugDump::DebugDump(const std::string& directory, int number) {
    if (directory.empty()) return;
    folder_ = std::filesystem::path(directory) /
              ("graph_" + std::to_string(getpid()) + "_" + std::to_string(number));
    std::error_code ignored;
    std::filesystem::create_directories(folder_ / "kernels", ignored);
}

void DebugDump::level(std::string_view name, const std::string& text) {
    if (!enabled()) return;
    std::string position = std::to_string(next_++);
    if (position.size() < 2) position.insert(0, "0");
    file(position + "_" + std::string(name), text);
}

void DebugDump::file(const std::filesystem::path& relative, const std::string& text) const {
    if (!enabled()) return;
    std::ofstream(folder_ / relative) << text;
}

}  // namespace ingot::runtime
