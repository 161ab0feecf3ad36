// See frozen_checks.h.
#include "trace/frozen_checks.h"

#include <memory>
#include <mutex>
#include <utility>

namespace ingot::trace {
namespace {

using Handler = std::function<void(const std::string&)>;

struct Told {
    std::mutex mutex;
    std::shared_ptr<const Handler> handler;
};

/// Of the process, as warnings are; threads may still ask when statics are destroyed.
Told& told() {
    static Told& made = *new Told;
    return made;
}

}  // namespace

void on_unseen_write(Handler handler) {
    auto kept = std::make_shared<const Handler>(std::move(handler));
    std::lock_guard lock(told().mutex);
    told().handler = std::move(kept);
}

void report_unseen_write(const std::string& name) {
    std::shared_ptr<const Handler> handler;
    {
        std::lock_guard lock(told().mutex);
        handler = told().handler;
    }
    if (handler && *handler) (*handler)(name);
}

}  // namespace ingot::trace
