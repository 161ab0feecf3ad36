// Look-up of prims by their printed name.
#include "ir/prim.h"

#include <string>
#include <unordered_map>

namespace ingot {

std::optional<Prim> parse_prim(std::string_view text) {
    static const auto* const index = [] {
        auto* m = new std::unordered_map<std::string_view, Prim>();
        for (int i = 0; i < kPrimCount; ++i) m->emplace(kPrimTable[i].text, static_cast<Prim>(i));
        return m;
    }();
    auto it = index->find(text);
    if (it == index->end()) return std::nullopt;
    return it->second;
}

}  // namespace ingot
