// Emits the instructions of one phase; see emit.h. A value is asked for at an index; the emitter
// finds it among the instructions it has, in memory, or computes it from its operands.
#pragma once
#include <unordered_map>

#include "schedule/emit.h"
#include "schedule/index.h"

namespace ingot::sched {

/// Where a value of the group is in this phase.
struct Found {
    enum class Where : std::uint8_t {
        Compute,
        Memory,
        Scratch,
        Reduced,
        Accumulator
    } where = Where::Compute;
    std::int32_t buffer = -1;  // Scratch
    Expr offset;               // Scratch
    std::int32_t phase = -1;   // Reduced
    std::int32_t reduction = -1;
};

class PhaseEmitter {
  public:
    /// `find` says where an anchored value of the group is when asked for at an index.
    using Find = std::function<Found(ValueId value, const Sizes& index)>;
    PhaseEmitter(const EmitContext& context, Draft& draft, Phase& phase, Find find)
        : c_(context), draft_(draft), phase_(phase), find_(std::move(find)) {}

    /// The value at `index`. Where `mask` fails the result may be anything, but no memory outside
    /// the buffers is touched.
    InstId value(ValueId v, const Sizes& index, InstId mask = kNone);
    /// The same, computed from its operands even when it is in memory.
    InstId compute(ValueId v, const Sizes& index, InstId mask = kNone);
    /// The value at `index` where all of `valid` hold, else 0.
    InstId guarded(ValueId v, const Sizes& index, const std::vector<Condition>& valid);
    InstId convert(InstId x, DType to);
    InstId index_number(Expr e);
    std::int32_t buffer_of(ValueId v);

  private:
    InstId append(Inst inst);
    InstId prim(Prim p, DType dtype, std::vector<InstId> operands, std::int64_t imm = 0);
    InstId constant(Scalar value, DType dtype);
    InstId load(ValueId v, const Sizes& index, InstId mask, Scalar otherwise);
    InstId movement(const Node& n, const Sizes& index, InstId mask);
    InstId indexing(const Node& n, const Sizes& index, InstId mask);
    InstId creation(const Node& n, const Sizes& index, InstId mask);
    InstId condition(const std::vector<Condition>& valid);
    bool in_memory(ValueId v, const Sizes& index);

    struct Key {
        ValueId value;
        InstId mask;
        Sizes index;
        bool operator==(const Key& o) const = default;
    };
    struct KeyHash {
        std::size_t operator()(const Key& k) const;
    };

    const EmitContext& c_;
    Draft& draft_;
    Phase& phase_;
    Find find_;
    std::unordered_map<Key, InstId, KeyHash> known_;
    std::unordered_multimap<std::size_t, InstId> shared_;
};

}  // namespace ingot::sched
