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

#include "trace/recorder.h"

namespace ingot::capture {

/// What the user said of sizes that change (`dynamic=`).
enum class Dynamic : std::uint8_t { WhenChanged, Always, Never };

class SizeHistory {
  public:
    /// The sizes of a tensor that came by `path`: names for those that are to be symbolic now,
    /// empty ones for the others. Equal sizes get one name.
    std::vector<trace::SymbolicSize> sizes_of(const std::string& path, PyObject* tensor,
                                              Dynamic dynamic);
    /// The same for an integer; an empty name: fixed.
    trace::SymbolicSize number_of(const std::string& path, std::int64_t value, Dynamic dynamic);
    /// A recording has needed the number of this symbol: from now on it is fixed.
    void fix(const std::string& symbol);
    /// Nothing of this list becomes symbolic any more.
    void fix_all() { fixed_ = true; }

  private:
    /// Size by dim as seen first, or one of these.
    static constexpr std::int64_t kChanges = -1, kFixed = -2;
    bool changes(std::int64_t& seen, std::int64_t value, Dynamic dynamic) const;

    bool fixed_ = false;
    std::map<std::string, std::vector<std::int64_t>> seen_;
    std::map<std::string, std::vector<std::pair<std::string, std::size_t>>> users_;  // by symbol
};

}  // namespace ingot::capture
