// The debug folder: every level of one compilation as files for people. Nothing reads them back.
// Failures to write are silent: a full disk costs the file, not the run.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/driver.h"

namespace ingot::runtime {

class DebugDump {
  public:
    /// A new folder `graph_<pid>_<number>` under `directory`; with an empty one nothing is written.
    DebugDump(const std::string& directory, int number);
    bool enabled() const { return !folder_.empty(); }
    /// Writes `<position>_<name>`, numbered in the order of calls.
    void level(std::string_view name, const std::string& text);
    void file(const std::filesystem::path& relative, const std::string& text) const;

  private:
    std::filesystem::path folder_;
    int next_ = 0;
};

}  // namespace ingot::runtime
