// See background.h.
#include "runtime/background.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <system_error>
#include <utility>

namespace ingot::runtime {
namespace {

/// Calls that run meanwhile get three quarters of a core they share with this thread.
constexpr int kNicer = 5;

/// While it lives, threads are born with all signals blocked: they are the callers' to handle.
class NoSignals {
  public:
    NoSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    NoSignals(const NoSignals&) = delete;
    NoSignals& operator=(const NoSignals&) = delete;

  private:
    sigset_t before_;
};

/// Advice only: where the system refuses, the thread is as good as any.
void yield_to_others() {
    const auto self = static_cast<id_t>(gettid());
    (void)setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + kNicer);
}

}  // namespace

void Background::Task::run() {
    const auto stop = [this] { return stop_.load(std::memory_order_relaxed); };
    try {
        if (!stop()) work_(stop);
        work_ = nullptr;  // and all it holds
        end(stop() ? State::Stopped : State::Done);
    } catch (...) {
        work_ = nullptr;
        end(stop() ? State::Stopped : State::Failed);
    }
}

Background::~Background() { hold(); }

void Background::start(std::shared_ptr<Task> task) {
    std::lock_guard lock(mutex_);
    if (held_ > 0) return task->end(Task::State::Stopped);
    queue_.push_back(task);
    if (running_) return;
    // One that ran before has left its loop.
    if (thread_.joinable()) thread_.join();
    try {
        const NoSignals blocked;
        running_ = true;
        thread_ = std::thread([this] { loop(); });
    } catch (const std::system_error&) {
        running_ = false;
        queue_.clear();
        task->end(Task::State::Failed);
    }
}

void Background::loop() {
    yield_to_others();
    for (;;) {
        std::shared_ptr<Task> task;
        {
            std::lock_guard lock(mutex_);
            current_ = nullptr;
            if (queue_.empty()) {
                running_ = false;
                idle_.notify_all();
                return;
            }
            task = current_ = std::move(queue_.front());
            queue_.pop_front();
        }
        task->run();
    }
}

void Background::hold() {
    std::thread ended;
    {
        std::unique_lock lock(mutex_);
        ++held_;
        for (const auto& waiting : queue_) waiting->end(Task::State::Stopped);
        queue_.clear();
        if (current_) current_->stop_ = true;
        idle_.wait(lock, [this] { return !running_; });
        ended = std::move(thread_);
    }
    if (ended.joinable()) ended.join();
}

void Background::release() {
    std::lock_guard lock(mutex_);
    if (held_ > 0) --held_;
}

void Background::wait() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return !running_; });
}

}  // namespace ingot::runtime
