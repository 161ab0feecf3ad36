// A thread for work that nobody waits for: the better form of a program while a lesser one serves.
//
// One piece of work at a time, each on the same thread with less right to a core than its callers
// have; the thread ends when there is no more to do. It runs no Python, takes no signals, and
// whatever goes wrong in a task is that task's state. Before a fork, and before a process ends, its
// owner holds it: what was begun is stopped and can be begun again. Part of the driver.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace ingot::runtime {

class Background {
  public:
    /// Whether the work is to end early; asked by the work itself.
    using StopCheck = std::function<bool()>;

    class Task {
      public:
        enum class State : std::uint8_t {
            Pending,
            Done,
            Failed,   // it threw
            Stopped,  // before its end, or its beginning, for the sake of a fork or an exit
        };
        explicit Task(std::function<void(const StopCheck&)> work) : work_(std::move(work)) {}
        State state() const { return state_.load(std::memory_order_acquire); }
        /// Nobody wants the result any more.
        void give_up() { stop_ = true; }

      private:
        friend class Background;
        void run();
        void end(State state) { state_.store(state, std::memory_order_release); }

        std::function<void(const StopCheck&)> work_;
        std::atomic<bool> stop_{false};
        std::atomic<State> state_{State::Pending};
    };

    Background() = default;
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    /// Runs `task` when its turn comes; it is Stopped at once while this is held, and Failed where
    /// there is no thread to be had.
    void start(std::shared_ptr<Task> task);
    /// Stops all tasks, waits for the thread to end, and starts no other until `release` has been
    /// called as often. A task ends where it asks whether it should: within milliseconds, but for a
    /// compilation's passes and schedule.
    void hold();
    void release();
    /// Until all that was started is over.
    void wait();

  private:
    void loop();

    std::mutex mutex_;
    std::condition_variable idle_;
    std::deque<std::shared_ptr<Task>> queue_;
    std::shared_ptr<Task> current_;
    std::thread thread_;
    bool running_ = false;  // the thread will look at the queue again
    int held_ = 0;
};

}  // namespace ingot::runtime
