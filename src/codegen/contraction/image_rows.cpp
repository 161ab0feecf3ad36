// See image_rows.h.
#include "codegen/contraction/image_rows.h"

#include <algorithm>
#include <vector>

namespace ingot::codegen {
namespace {

/// All indices that A's element depends on; nothing if it depends on more than those.
std::optional<std::vector<Expr>> indices_of(const std::vector<Inst>& insts) {
    std::vector<Expr> found;
    for (const Inst& i : insts) {
        const bool is_last = &i == &insts.back();
        if (i.kind == InstKind::Bind || (i.kind == InstKind::Load && !is_last)) return std::nullopt;
        if (i.kind == InstKind::Index || i.kind == InstKind::Load) found.push_back(i.offset);
    }
    return found;
}

/// What a step of `var` adds.
std::optional<Expr> step_along(Expr e, Expr var) {
    if (!contains(e, var)) return Expr(0);
    const auto linear = linear_in(e, var);
    if (!linear) return std::nullopt;
    return linear->stride;
}

/// Whether a tap further is the same as a result further.
bool move_alike(const std::vector<Expr>& indices, const Loop& tap, const Loop& result) {
    return std::ranges::all_of(indices, [&](Expr e) {
        const auto x = step_along(e, tap.var), y = step_along(e, result.var);
        return x && y && x->is_constant() && *x == *y;
    });
}

}  // namespace

bool constant_extents(const std::vector<Loop>& loops) {
    return std::ranges::all_of(loops, [](const Loop& l) { return l.extent.is_constant(); });
}

std::optional<ImageRows> find_image(const Contraction& c, const ContractionPlan& plan,
                                    std::int64_t channels) {
    const OperandPlan& a = plan.a;
    if (a.form != OperandForm::Runs || !a.step.is(1) || !c.batch.empty() || c.m.size() < 2 ||
        a.inner == 0 || a.inner > 2 || !constant_extents(c.m) || !constant_extents(c.k) ||
        !mod(a.run, Expr(channels)).is(0))
        return std::nullopt;
    const auto indices = indices_of(c.a_insts);
    if (!indices) return std::nullopt;
    const Loop &across = c.m.back(), &down = c.m[c.m.size() - 2];
    ImageRows image;
    image.width = across.extent.constant();
    image.height = down.extent.constant();
    image.images = plan.m.constant() / (image.width * image.height);
    image.channels = a.run.constant();
    const Loop& last_tap = c.k[a.inner - 1];
    if (move_alike(*indices, last_tap, across)) {
        image.taps_across = last_tap.extent.constant();
        if (a.inner == 2) {
            if (!move_alike(*indices, c.k[0], down)) return std::nullopt;
            image.taps_down = c.k[0].extent.constant();
        }
    } else {
        if (a.inner == 2 || !move_alike(*indices, last_tap, down)) return std::nullopt;
        image.taps_down = last_tap.extent.constant();
    }
    return image;
}

}  // namespace ingot::codegen
