// Which sizes and integers of a call change: fixed at first, symbolic once they did.
//
// Asked by the recorder for each tensor and integer that comes with a call; kept with the list of
// segments that the recording is for, so that the second recording knows what the first had. Cost:
// a few map look-ups a tensor while recording, nothing at replays.
#pragma once
#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "capture/ref.h"
#include "trace/recorder.h"

namespace ingot::capture {

/// What the user said of sizes that change (`dynamic=`).
enum class Dynamic : std::uint8_t { WhenChanged, Always, Never };

class SizeHistory {
  public:
    /// Another recording of the list begins.
    void begin_recording();
    /// Whether the recording is one of few calls: a size that changes is 0 or 1, which is always
    /// fixed, or two sizes that were different once are equal.
    bool is_unusual() const { return unusual_; }
    /// The sizes of a tensor that came by `path`: names for those that are to be symbolic now,
    /// empty ones for the others. Sizes that have been equal whenever both were there get one name.
    std::vector<trace::SymbolicSize> sizes_of(const std::string& path, PyObject* tensor,
                                              Dynamic dynamic);
    /// The same for an integer; an empty name: fixed.
    trace::SymbolicSize number_of(const std::string& path, std::int64_t value, Dynamic dynamic);
    /// The same for a float: a name if it is an input of the program now.
    std::string float_of(const std::string& path, double value, Dynamic dynamic);
    /// Whether the tuple that a pinned container holds is not always the same one; `first`: nothing
    /// was known of it.
    bool varies(const std::string& path, PyObject* tuple, Dynamic dynamic, bool& first);
    /// Whether a symbol is of `mark_dynamic`, which the program must not fix.
    static bool is_marked(const std::string& symbol) { return symbol.starts_with('m'); }
    /// Up to which size a symbol goes: small enough that products of a few stay numbers of 64 bits.
    static Range range_for(std::int64_t value);
    /// A recording has needed the number of this symbol: from now on it is fixed.
    void fix(const std::string& symbol);
    /// Nothing of this list becomes symbolic any more.
    void fix_all() { fixed_ = floats_fixed_ = true; }
    /// Sizes and integers no more, floats still.
    void fix_sizes() { fixed_ = true; }

  private:
    /// Size by dim as seen first, or one of these.
    static constexpr std::int64_t kChanges = Range::kMin, kFixed = Range::kMin + 1;
    bool changes(std::int64_t& seen, std::int64_t value, Dynamic dynamic);
    using Slot = std::pair<std::string, std::size_t>;  // key, dim
    /// The name of the size that this one is equal to.
    const std::string& name_of(const Slot& slot, std::int64_t value);

    struct Float {
        double seen = 0;
        bool changes = false, fixed = false;
    };

    bool fixed_ = false, floats_fixed_ = false;
    std::map<std::string, std::pair<Ref, bool>>
        tuples_;                                      // by path: as seen first; whether it varies
    std::map<std::string, Float> floats_;             // by path
    std::map<std::string, std::string> float_paths_;  // by name
    std::map<std::string, std::vector<std::int64_t>> seen_;
    std::map<std::string, std::vector<std::pair<std::string, std::size_t>>> users_;  // by symbol
    std::map<Slot, std::map<std::size_t, std::int64_t>> trails_;  // values by recording
    struct Group {
        std::string name;
        std::int64_t value = 0;
        std::vector<Slot> slots;
    };
    std::vector<Group> groups_;  // of equal sizes in this recording
    std::size_t recording_ = 0;
    bool unusual_ = false;
    std::size_t named_ = 0;  // symbols so far, also those that were fixed: a name is given once
};

}  // namespace ingot::capture
