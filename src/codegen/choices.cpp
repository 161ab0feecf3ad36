// See choices.h.
#include "codegen/choices.h"

#include <sstream>

#include "codegen/contraction/decisions.h"
#include "codegen/llvm/emit_shape.h"

namespace ingot::codegen {

namespace {

void write(std::ostream& out, const OperandPlan& o) {
    out << static_cast<int>(o.form) << ' ' << o.inner << ' ' << o.step.is(1) << o.segments.is(1)
        << ' ';
}

void write(std::ostream& out, const Decisions& d) {
    write(out, d.plan.a);
    write(out, d.plan.b);
    out << d.plan.tile.lanes << ' ' << d.plan.tile.vectors << ' ' << d.plan.tile.rows << ' '
        << d.plan.pairs << d.plan.parts << d.matrix_runs << d.pad_rest << d.pack_a << d.b_in_place
        << d.batch_shift.has_value() << ' ' << d.block_rows << ' ' << d.most_rows << ' '
        << d.block_k << ' ' << d.group << ' ' << d.tiles << ' ' << or_default(d.blocks, -1) << ' '
        << d.rows_of_images << d.skips << ' ';
    if (d.winograd)  // its code has all sizes as numbers
        out << 'w' << d.winograd->image.images << ' ' << d.winograd->image.height << ' '
            << d.winograd->image.width << ' ' << d.winograd->image.channels << ' '
            << or_default(d.plan.n, -1) << ' ';
    if (d.gradient)
        out << 'g' << d.gradient->images << ' ' << d.gradient->height << ' ' << d.gradient->width
            << ' ' << d.gradient->channels << ' ' << d.gradient->results << ' '
            << d.gradient->point_step << ' ' << d.gradient->result_step << ' '
            << d.gradient->tile_rows << ' ';
    for (const bool streamed : d.streamed) out << streamed;
    for (const int h : d.heights) out << ' ' << h;
}

void write(std::ostream& out, const NestShape& s) {
    out << s.outer_vector << ' ' << s.lanes << ' ' << s.rest_lanes << ' ' << s.chunk << ' '
        << s.tile.loop << ' ';
    for (const LoopLanes& l : s.phase_lanes) out << l.main << ' ' << l.rest << ' ';
    for (const InstId i : s.tile.loads) out << i << ' ';
    for (const bool streamed : s.streamed) out << streamed;
    out << ';';
}

}  // namespace

std::string choices_of(const Kernel& kernel, const TargetInfo& target) {
    std::ostringstream out;
    if (kernel.contraction) write(out, decide(kernel, target));
    for (const Nest& nest : kernel.nests) {
        const NestShape shape = shape_of(kernel, nest, target, {});
        write(out, shape);
        for (std::size_t p = 0; p < nest.phases.size(); ++p)
            if (const auto v = vector_loop(nest.phases[p])) {
                const Expr extent = nest.phases[p].loops[*v].extent;
                const LoopLanes fitted = fit_lanes(extent, shape.phase_lanes[p]);
                out << fitted.main << ' ' << fitted.rest << ';';
            }
    }
    return out.str();
}

}  // namespace ingot::codegen
