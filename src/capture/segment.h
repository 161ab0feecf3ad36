// A segment: a stretch of a Python program as guards, a compiled graph, recipes and an end.
//
// The root segment's slots are a call's arguments. A segment that ends with a break knows the
// frames that were live there; the segments behind it (its children) have those frames' slots as
// theirs, and the result of the breaking operation. Made by the recorder, walked by replays
// (replay.h).
#pragma once
#include <Python.h>

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capture/guards.h"
#include "capture/interpreter/observer.h"
#include "capture/modes.h"
#include "capture/places.h"
#include "capture/recipe.h"
#include "capture/segment_program.h"
#include "capture/size_history.h"
#include "trace/gpu.h"

namespace ingot::capture {

/// A live frame at a break, without its values: those are roots of the recipes.
struct FrameShape {
    int offset = 0;
    Resume resume = Resume::complete;
    std::size_t slots = 0, stack = 0;
};

/// The operation at which a segment broke off.
struct BreakPoint {
    Operation operation = Operation::call;
    int detail = 0;
    Ref name, keyword_names;
    std::size_t operands = 0;        // the last roots
    std::vector<FrameShape> frames;  // outermost first; a root for each function, slot, stack entry
};

struct Segment;
using SegmentList = std::vector<std::shared_ptr<Segment>>;
/// Whether a list with this limit has had all recordings that it gets under these modes. Those of
/// unusual sizes, and those of other modes, take no places away: a function that trains, is
/// evaluated and gets ragged batches is not left to eager for that.
bool is_full(const SegmentList& list, std::size_t limit, const Modes& modes);

struct Segment {
    enum class End : std::uint8_t {
        Return,  // the recipes' root is what the outermost frame returns
        Break,   // the operation is carried out, then a child goes on
        Leave,   // genuine frames go on from the operation, which CPython carries out
        Eager,   // these guards mean: run this part without any recording
    };
    struct Input {
        bool pinned = false;
        std::int32_t index = -1;  // of the pinned tensor, the node or the float
        bool number = false;      // a float
        std::shared_ptr<trace::GpuNumber> on_gpu = nullptr;  // a float that the program wants there
    };

    GuardSet guards;
    std::shared_ptr<SegmentProgram> program;  // none: nothing to compute
    std::vector<Input> inputs;                // the program's
    std::vector<ClearedGradient> dropped;     // before the program runs
    Recipes recipes;
    bool has_effects = false;
    End end = End::Eager;
    Modes after;  // modes that the segment leaves behind
    BreakPoint at;
    std::shared_ptr<SegmentList> children;  // shared by all breaks at this place
    bool unusual = false;                   // see SizeHistory::is_unusual
    std::string reason;                     // of the break, or of running eagerly
    std::string line;                       // where
    std::vector<CodePlace> places;          // the frames there, outermost first
    bool refused = false;    // of Eager: an error instead of running (see Recording::refuse)
    bool raises = false;     // of Eager: the program's own exception leaves it
    bool later = false;      // it is a whole graph, which the next recording compiles with numbers
    std::size_t number = 0;  // in the order of recording
    std::vector<std::string> operators;
    std::size_t outputs = 0;

    int traverse(visitproc visit, void* arg) const;
};

/// The segments of one captured function: those that begin with a call, by the call's shape, and
/// those behind breaks, by the chain of frames and places.
struct SegmentTree {
    std::map<std::string, std::shared_ptr<SegmentList>> lists;
    std::unordered_map<const SegmentList*, SizeHistory> histories;
    /// Custom functions that cannot be recorded, and why.
    std::map<PyObject*, std::pair<Ref, std::string>> refused;
    /// Operations whose C code has asked for what cannot be recorded, by code and offset: breaks
    /// from then on, for this reason.
    std::map<std::pair<PyObject*, int>, std::pair<Ref, std::string>> asks;
    /// Recordings that came to nothing, so that no segment tells of them: why, and where.
    struct Abandoned {
        std::string reason, line;
        std::size_t number = 0;
    };
    std::vector<Abandoned> abandoned;
    std::unordered_set<const SegmentList*> full;  // of which it was said that the limit is reached
    std::size_t recorded = 0;  // segments so far, those of abandoned recordings included

    std::shared_ptr<SegmentList> list(const std::string& key) {
        auto& l = lists[key];
        if (!l) l = std::make_shared<SegmentList>();
        return l;
    }
    int traverse(visitproc visit, void* arg) const;
};

}  // namespace ingot::capture
