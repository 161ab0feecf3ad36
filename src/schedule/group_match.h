// Whether and how one anchor fits into a group of others: its dims in the group's variables, the
// phase it belongs to, and what becomes of the variables. Part of grouping, see fuse.h; asks, and
// changes nothing. Costs a few comparisons of expressions for each of the anchor's reads.
#pragma once
#include <optional>
#include <vector>

#include "schedule/fuse.h"
#include "schedule/layout.h"
#include "schedule/solve.h"

namespace ingot::sched {

/// What joining would change.
struct Match {
    std::vector<LoopVar> vars;
    Sizes map;
    int step = 0;
    Run run;
    bool gathers = false;
};

/// By value: recent anchors that read it.
using ReadersOfValues = std::vector<std::vector<std::uint32_t>>;

class GroupMatcher {
  public:
    GroupMatcher(const Graph& g, const Placement& p, const Layouts& layouts,
                 const ScheduleOptions& options, const Fusion& fusion,
                 const ReadersOfValues& readers)
        : g_(g), p_(p), layouts_(layouts), options_(options), f_(fusion), readers_(readers) {}

    /// How `a` joins the group; nothing where it does not. `twin`: an anchor of the group with the
    /// same domain that it may stand beside without reading anything alike.
    std::optional<Match> match(const Anchor& a, std::uint32_t candidate, const Anchor* twin) const;

    Expr new_variable(std::vector<LoopVar>& vars, Expr extent, bool outer) const;
    /// The group's variable along which `a` (standing at `map`) stores to neighbouring elements,
    /// or, a reduction, reads them; 0 where there is none.
    Expr contiguous_variable(const Anchor& a, const Sizes& map) const;

  private:
    // Whether the anchor would walk memory across the group's way without need: it reads nothing of
    // the group, or only what will be in memory.
    bool crosses(const Anchor& a, std::uint32_t candidate, const Match& match) const;
    // The anchors of `group` that make `value`; nothing useful for a part of a concatenation.
    const Anchor* maker_in(ValueId value, std::uint32_t group) const;
    // a's dims from where it reads `u`. Dims of u that only inner variables make up may be read at
    // other positions: they are complete when u's phase is.
    bool equate_producer(DimSolver& solver, const Group& group, const Anchor& u,
                         const Read& r) const;
    // a's dims from memory that it and an anchor of the group read alike.
    bool equate_sibling(DimSolver& solver, const Anchor& a, std::uint32_t candidate) const;
    // Variables that `a` reduces over become inner ones, and all others that it uses must be as the
    // group has them.
    bool choose_outer(const Anchor& a, const Group& group, Match& match) const;
    // A sum over pieces of one outer variable that keeps the group's inner one: columns of the rows
    // at hand, added up as the rows pass. Sets the match's run, and makes rows of elements.
    bool gathers(const Anchor& a, const Group& group, Match& match,
                 const std::vector<Expr>& gone) const;
    // Of a group that computes elements: the variable that becomes its rows' own, neighbours in
    // memory; null where they are no rows of one length. Several values are rows alike where each
    // is computed of the others' same element.
    const LoopVar* column_of(const Group& group, const Match& match) const;
    // Every read of the group's own values is at the same outer point; sets the phase.
    bool check_reads(const Anchor& a, std::uint32_t candidate, const DimSolver& solver,
                     Match& match) const;

    const Graph& g_;
    const Placement& p_;
    const Layouts& layouts_;
    const ScheduleOptions& options_;
    const Fusion& f_;
    const ReadersOfValues& readers_;
};

}  // namespace ingot::sched
