// Regions: stretches of a recording that keep nothing for the backward (passes/regions.h), and what
// they do that would be done twice if they ran a second time; see recorder.h.
#include <algorithm>

#include "trace/recorder_state.h"
#include "trace/tensors.h"

namespace ingot::trace {

void Recorder::begin_region(std::span<const at::Tensor> given) {
    RecorderState& s = *state_;
    for (const at::Tensor& t : given) s.given_to_regions.emplace(t.unsafeGetTensorImpl(), t);
    check(!s.region, "a region within a region");
    s.region.emplace();
    s.region->calls = s.log.size();
    s.region->inputs = s.inputs.size();
    const auto note = [&](const at::Tensor& t) {
        if (const Promise* p = t.defined() ? as_promise(t.unsafeGetTensorImpl()) : nullptr)
            s.region->before.emplace(p->cell(), p->cell()->generation);
    };
    for (const InputSource& source : s.inputs) note(source.promise);
    for (const LoggedCall& call : s.log)
        for (const c10::IValue& v : call.results) for_each_tensor(v, note);
    s.region->nodes = s.graph.nodes().size();
}

Recorder::RegionEffects Recorder::end_region() {
    RecorderState& s = *state_;
    check(s.region.has_value(), "no region has begun");
    RegionEffects effects;
    for (const auto& [cell, generation] : s.region->before)
        effects.writes = effects.writes || cell->generation != generation;
    for (std::size_t i = s.region->inputs; i < s.inputs.size(); ++i)
        if (const Promise* p = as_promise(s.inputs[i].promise.unsafeGetTensorImpl()))
            effects.writes = effects.writes || p->cell()->generation != 0;
    for (std::size_t i = s.region->calls; i < s.log.size(); ++i)
        effects.draws = effects.draws || s.log[i].op.hasTag(at::Tag::nondeterministic_seeded);
    ++s.regions;
    for (NodeId id = static_cast<NodeId>(s.region->nodes); id < s.graph.nodes().size(); ++id)
        s.graph.node(id).attrs.set("region", s.regions);
    s.region.reset();
    return effects;
}

}  // namespace ingot::trace
