// See gpu_forms.h.
#include "codegen/gpu_forms.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

namespace ingot::codegen {

namespace {

constexpr unsigned kMostThreads = 1024, kMostEach = 8, kMostLanes = 8, kWarp = 32;

/// The numbers after the first word; nothing unless there are `count` of them and no more.
template <std::size_t count>
std::optional<std::array<unsigned, count>> numbers(std::istringstream& in) {
    std::array<unsigned, count> all{};
    for (unsigned& n : all)
        if (!(in >> n)) return std::nullopt;
    std::string more;
    if (in >> more) return std::nullopt;
    return all;
}

bool power_of_two_up_to(unsigned n, unsigned most) {
    return n <= most && (n & (n - 1)) == 0;  // 0 among them
}

}  // namespace

std::string to_string(const GpuForm& form) {
    std::ostringstream out;
    if (const auto* nest = std::get_if<NestForm>(&form))
        out << "nest " << nest->threads << ' ' << nest->each << ' ' << nest->lanes;
    else if (const auto* tile = std::get_if<ProductTile>(&form))
        out << "product " << tile->groups << ' ' << tile->columns << ' ' << tile->stages << ' '
            << tile->blocks;
    else
        out << "library";
    return out.str();
}

std::optional<GpuForm> parse_gpu_form(std::string_view text) {
    std::istringstream in{std::string(text)};
    std::string kind;
    in >> kind;
    if (kind == "library" && numbers<0>(in)) return LibraryForm{};
    if (kind == "nest") {
        const auto n = numbers<3>(in);
        if (!n) return std::nullopt;
        const NestForm form{(*n)[0], (*n)[1], (*n)[2]};
        if (form.threads > kMostThreads || form.threads % kWarp != 0) return std::nullopt;
        if (!power_of_two_up_to(form.each, kMostEach) ||
            !power_of_two_up_to(form.lanes, kMostLanes))
            return std::nullopt;
        return form;
    }
    if (kind == "product") {
        const auto n = numbers<4>(in);
        if (!n) return std::nullopt;
        const ProductTile tile{(*n)[0], (*n)[1], (*n)[2], (*n)[3]};
        if (std::ranges::find(kProductTiles, tile) != kProductTiles.end()) return tile;
    }
    return std::nullopt;
}

std::string product_key(const ProductForm& form) {
    return "product " + to_string(form.rows) + "x" + std::to_string(form.columns) + "x" +
           std::to_string(form.depth) + " " + std::string(name(form.dtype));
}

std::optional<GpuForm> form_of(const Kernel& kernel, const std::string& text,
                               const GpuFormLookup& forms) {
    if (!forms) return std::nullopt;
    if (!kernel.contraction) return forms(text);
    const auto product = product_form(kernel);
    return product ? forms(product_key(*product)) : std::nullopt;
}

}  // namespace ingot::codegen
