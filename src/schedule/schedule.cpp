// Assembles the plan: buffers for values, groups in order as kernels and extern steps, equal
// kernels once. See schedule.h for the flow.
#include "schedule/schedule.h"

#include <algorithm>
#include <unordered_map>

#include "passes/epilogues.h"
#include "schedule/batch.h"
#include "schedule/contract.h"
#include "schedule/emit.h"
#include "schedule/index.h"
#include "schedule/kernel_key.h"
#include "schedule/legalize.h"
#include "schedule/loops.h"
#include "schedule/memory.h"
#include "schedule/order.h"
#include "schedule/reuse.h"

namespace ingot {

using namespace sched;

namespace {

class Scheduler {
  public:
    Scheduler(const Legalized& legal, const ScheduleOptions& options)
        : g_(legal.graph),
          options_(options),
          epilogues_(g_),
          layouts_(g_, options.gpu, legal.in_memory, turned_weights()),
          placement_(place(
              g_, layouts_, legal.in_memory, [this](NodeId id) { return generates(id); },
              options.gpu)),
          fusion_(fuse(g_, placement_, layouts_, options)),
          buffer_of_(g_.values().size(), -1),
          context_{g_, placement_, fusion_, layouts_} {}

    Plan run() {
        plan_.pool = g_.shared_pool();
        plan_.guards = g_.guards();
        for (const Input& in : g_.inputs()) {
            plan_.input_buffers.push_back(buffer(in.value));
            plan_.frozen_inputs.push_back(placement_.frozen[in.value]);
        }
        for (std::uint32_t group : order_groups(g_, placement_, layouts_, fusion_)) {
            const Group& gr = fusion_.groups[group];
            Step step = gr.is_extern ? extern_step(gr) : Step(kernel_step(group));
            (gr.frozen ? plan_.frozen_steps : plan_.steps).push_back(std::move(step));
        }
        for (const Output& o : g_.outputs()) plan_.output_buffers.push_back(buffer(o.value));
        write_inputs_directly(plan_);
        if (options_.batch) batch_launches(plan_);
        plan_memory(plan_);
        return std::move(plan_);
    }

  private:
    bool generates(NodeId id) const {
        const Node& n = g_.node(id);
        if (!has_contraction_form(g_, n) || n.attrs.has("dtype")) return false;
        // Nobody else reads panels.
        if (n.prim == Prim::PackedMatmul || n.prim == Prim::PackedConv) return true;
        if (options_.gpu && has_odd_rows(n)) {
            if (!epilogues_.only_handed_out(id)) return false;
        } else if (options_.generate_with_epilogue_only && !epilogues_.costly(id)) {
            return false;
        }
        return options_.generate_contraction &&
               options_.generate_contraction(bare_contraction(g_, id, layouts_));
    }

    // Generated code writes them with nothing behind the product only: see align_columns.
    bool has_odd_rows(const Node& n) const {
        const Expr columns = g_.type(n.results[0]).sizes.back();
        return n.prim == Prim::Matmul && columns.is_constant() && columns.constant() % 8 != 0;
    }

    // Weights of products that may be generated, which want rows that run along the sum: those of
    // which there is a copy anyway.
    std::vector<ValueId> turned_weights() const {
        std::vector<ValueId> turned;
        if (!options_.generate_with_epilogue_only) return turned;
        for (NodeId id = 0; id < g_.nodes().size(); ++id) {
            if (g_.node(id).prim != Prim::Matmul || !epilogues_.costly(id)) continue;
            if (const ValueId v = epilogues_.own_copy(id); v != kNone) turned.push_back(v);
        }
        return turned;
    }

    // --- buffers ---

    // Steps outside that hand over memory of their own; the others write where they are told.
    bool makes_memory(const Node& n) const {
        return !has_loop_form(g_, n) && n.prim != Prim::Matmul && n.prim != Prim::MatmulBias &&
               !has_contraction_home(n) && !is_product(n) && !fills_in_place(n);
    }
    bool fills_in_place(const Node& n) const {
        return !options_.gpu && (n.prim == Prim::RandBernoulli || n.prim == Prim::RandUniform);
    }
    // A convolution, or its gradient, that is called as a product of the image's points with
    // channels. Gradients of weights are so on all processors, and those of images of which only
    // some points were read: there the library's convolutions reach half of its products' speed.
    bool is_product(const Node& n) const {
        if (options_.gpu) return false;
        if (n.prim != Prim::Conv && n.prim != Prim::ConvGradInput && n.prim != Prim::ConvGradWeight)
            return false;
        const Type& type = g_.type(n.results[0]);
        if (type.dtype != DType::F32 || type.rank() != 4) return false;
        const auto all = [](const auto& list, std::int64_t v) {
            return std::ranges::all_of(list, [&](const auto& e) { return Expr(e).is(v); });
        };
        const bool of_weight = n.prim == Prim::ConvGradWeight;
        const Sizes& weight = of_weight ? type.sizes : g_.type(n.operands[1]).sizes;
        if (!weight[2].is(1) || !weight[3].is(1) || n.attrs.get<bool>("transposed") ||
            n.attrs.get<std::int64_t>("groups") != 1 || !all(n.attrs.get<Sizes>("padding"), 0))
            return false;
        const bool steps = !all(n.attrs.get<Ints>("stride"), 1);
        if (steps ? n.prim != Prim::ConvGradInput : !of_weight && !options_.single_taps_as_products)
            return false;
        const auto last = [&](ValueId v) { return layouts_.strides(v)[1].is(1); };
        return last(n.operands[0]) && last(of_weight ? n.operands[1] : n.results[0]);
    }
    bool has_contraction_home(const Node& n) const {
        return kind(n.prim) == PrimKind::Contraction &&
               placement_.home[n.results[0]] == Home::Anchored;
    }

    static Expr extent_bytes(const Type& t, const Sizes& strides) {
        Expr elements = 1;
        for (std::size_t i = 0; i < strides.size(); ++i) {
            if (t.sizes[i].is(0)) return 0;
            elements += (t.sizes[i] - Expr(1)) * strides[i];
        }
        return elements * Expr(bytes(t.dtype));
    }

    std::int32_t buffer(ValueId v) {
        if (buffer_of_[v] >= 0) return buffer_of_[v];
        if (ValueId input = layouts_.written_input(v); input != kNone)
            return buffer_of_[v] = buffer(input);
        std::int32_t o = layouts_.output(v);
        Buffer b;
        b.type = g_.type(v);
        b.strides = layouts_.strides(v);
        b.bytes = extent_bytes(b.type, b.strides);
        const Node* n = g_.producer(v);
        if (n == nullptr) {
            b.place = BufferPlace::Input;
            b.index = static_cast<std::int32_t>(g_.values()[v].position);
        } else if (n->prim == Prim::Constant) {
            using Data = std::shared_ptr<const std::vector<std::uint8_t>>;
            b.place = BufferPlace::Constant;
            b.data = n->attrs.get<Data>("data");
        } else if (makes_memory(*n)) {
            b.place = BufferPlace::Extern;
            b.index = o;
        } else if (o >= 0) {
            b.place = BufferPlace::Output;
            b.index = o;
        } else {
            b.place = placement_.frozen[v] ? BufferPlace::Frozen : BufferPlace::Arena;
        }
        return buffer_of_[v] = add(std::move(b));
    }

    std::int32_t add(Buffer b) {
        plan_.buffers.push_back(std::move(b));
        return static_cast<std::int32_t>(plan_.buffers.size() - 1);
    }

    // The buffer an extern step reads `v` from: its own, or a view of what it is a view of.
    std::int32_t operand_buffer(ValueId v) {
        if (placement_.home[v] != Home::Inlined) return buffer(v);
        if (buffer_of_[v] >= 0) return buffer_of_[v];
        auto view = strided_view(
            g_, v, [&](ValueId at) { return placement_.home[at] != Home::Inlined; },
            [&](ValueId at) { return layouts_.strides(at); });
        check(view.has_value(), "an extern step's operand is no strided view");
        std::int32_t base = buffer(view->source);
        if (view->source == v) return base;
        Buffer b;
        b.type = g_.type(v);
        b.strides = view->strides;
        b.place = plan_.buffers[static_cast<std::size_t>(base)].place;
        b.index = plan_.buffers[static_cast<std::size_t>(base)].index;
        b.base = base;
        b.offset = view->offset * Expr(bytes(b.type.dtype));
        b.bytes = extent_bytes(b.type, b.strides);
        return buffer_of_[v] = add(std::move(b));
    }

    // --- steps ---

    ExternStep extern_step(const Group& group) {
        const Node& n = g_.node(group.node);
        ExternStep s;
        s.prim = n.prim;
        s.attrs = n.attrs;
        if (n.prim == Prim::ExternCall) {
            s.callee = n.attrs.get<std::string>("callee");
            s.index = n.attrs.get<std::int64_t>("index");
        }
        for (ValueId v : n.operands) s.inputs.push_back(operand_buffer(v));
        for (ValueId v : n.results) s.outputs.push_back(buffer(v));
        // ATen makes products of more than one batch elsewhere and copies them.
        s.fills = !options_.gpu && !makes_memory(n) && g_.type(n.results[0]).rank() <= 4 &&
                  (n.prim != Prim::Matmul || g_.type(n.results[0]).rank() <= 3);
        return s;
    }

    Draft draft_of(std::uint32_t group) {
        if (fusion_.groups[group].contracts) return emit_contraction_group(context_, group);
        Draft draft = emit_nest(context_, group, false);
        bool phases = draft.kernel.nests[0].phases.size() > 1;
        arrange_loops(draft, g_.pool(), options_.gpu);
        if (phases && vector_inside(draft.kernel.nests[0])) {
            draft = emit_nest(context_, group, true);
            arrange_loops(draft, g_.pool(), options_.gpu);
        }
        return draft;
    }

    KernelStep kernel_step(std::uint32_t group) {
        Draft draft = draft_of(group);
        KernelStep step;
        step.sizes = draft.kernel.sizes;
        for (ValueId v : draft.values) step.buffers.push_back(buffer(v));
        step.kernel = kernel(std::move(draft.kernel), group);
        return step;
    }

    std::int32_t kernel(Kernel k, std::uint32_t group) {
        auto [it, fresh] =
            kernels_.try_emplace(kernel_key(k), static_cast<std::int32_t>(plan_.kernels.size()));
        if (fresh) {
            k.name = readable_name(group);
            plan_.kernels.push_back(std::move(k));
        }
        return it->second;
    }

    // The prims of the group's anchors, a few of them.
    std::string readable_name(std::uint32_t group) const {
        std::string text;
        int words = 0;
        NodeId before = kNone;
        for (std::uint32_t id : fusion_.groups[group].anchors) {
            const Anchor& a = fusion_.anchors[id];
            if (a.node == before) continue;
            before = a.node;
            const Node& n = g_.node(a.node);
            if (++words > 4) break;
            if (!text.empty()) text += "_";
            text += name(n.prim);
        }
        return text;
    }

    const Graph& g_;
    const ScheduleOptions& options_;
    const Epilogues epilogues_;
    Layouts layouts_;
    Placement placement_;
    Fusion fusion_;
    std::vector<std::int32_t> buffer_of_;  // by value
    EmitContext context_;
    Plan plan_;
    std::unordered_map<std::string, std::int32_t> kernels_;  // by key
};

}  // namespace

std::function<bool(const Kernel&)> choose_by_cost(const VectorTarget& target) {
    return [=](const Kernel& kernel) {
        if (!kernel.contraction) return false;
        auto plan = plan_contraction(*kernel.contraction, kernel.buffers, target);
        // Operands of other types would be converted element by element.
        if (!plan || plan->a.form == OperandForm::Computed || plan->b.form == OperandForm::Computed)
            return false;
        ContractionCost cost = contraction_cost(*plan, target);
        return cost.generated <= cost.vendor;
    };
}

Plan schedule(const Graph& graph, const ScheduleOptions& options) {
    Legalized legal =
        legalize(graph, {options.cores, options.gpu, options.matrix_units, options.filters});
    return Scheduler(legal, options).run();
}

}  // namespace ingot
