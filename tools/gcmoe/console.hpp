// How every subcommand talks: a report for people on stdout, progress and errors on stderr, and
// with
// --json one JSON object as the last line of stdout.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "gcmoe/status.hpp"

namespace CLI {
class App;
class FormatterBase;
}  // namespace CLI

namespace gcmoe::cli {

// Exit codes that scripts rely on.
inline constexpr int kExitDone = 0;      // did what was asked, and verified it
inline constexpr int kExitFailed = 1;    // ran, and a check failed
inline constexpr int kExitBadInput = 2;  // stderr names the option and the value
inline constexpr int kExitStalled = 3;   // a bounded wait ran out

[[nodiscard]] int exit_code_of(Code code);

// kBadInput: "--tokens 300: over the capacity of 256". An empty value leaves only the option.
[[nodiscard]] Status option_error(std::string_view option, std::string_view value,
                                  std::string_view problem);

// Gives standard streams that nobody has opened their numbers back, so that no file of ours gets
// one of them: reading finds nothing, what is said aside is lost, and a report that is lost shows
// as one that cannot be written. Callers: main, before any file is opened.
void hold_standard_streams();

// On stderr. What cannot be said there is lost; it never changes what the command does.
void print_aside(std::string_view text);

// "gcmoe run: <message>" on stderr.
void print_error(std::string_view subcommand, std::string_view message);

// One line of ASCII on stdout: other characters are written as \uNNNN.
void print_json(const nlohmann::ordered_json& object);

// Prints the error (with --json also {"error", "verified", "reason"}) and returns its exit code.
int report_error(std::string_view subcommand, const Status& status, bool json);

// Options that every subcommand has.
struct ConsoleOptions {
    bool json = false;
    bool progress = false;  // also where stderr is no terminal
};
void add_console_options(CLI::App& command, ConsoleOptions* options);

// Help with descriptions wrapped to the width of a page.
[[nodiscard]] std::shared_ptr<CLI::FormatterBase> make_help_formatter();

// A bar on stderr while long work goes on: on a terminal, or if forced (then a line now and then).
// advance() may be called from several threads.
class ProgressBar {
  public:
    ProgressBar(std::string label, std::uint64_t total, bool forced);
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;
    ~ProgressBar();
    void advance(std::uint64_t steps = 1);

  private:
    using Clock = std::chrono::steady_clock;
    void draw();

    std::string label_;
    std::uint64_t total_;
    std::uint64_t done_ = 0;
    bool on_terminal_;
    bool visible_;
    bool drawn_ = false;
    Clock::time_point begin_;
    Clock::time_point next_draw_;
    std::mutex mutex_;
};

// Columns of text: the first left-aligned, numbers where asked to the right.
class Table {
  public:
    explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
    // `right` = index of the first right-aligned column.
    [[nodiscard]] std::string text(std::size_t right = 1, std::string_view indent = "  ") const;

  private:
    std::vector<std::vector<std::string>> rows_;
};

// "18.8 MiB".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);
// "a, b, c".
[[nodiscard]] std::string joined(const std::vector<std::string>& words);
// "1 expert", "2 experts", "2 launches".
[[nodiscard]] std::string counted(std::uint64_t count, std::string_view noun);
// The candidate with the smallest edit distance to `word`, or empty if none is near.
[[nodiscard]] std::string nearest(std::string_view word,
                                  const std::vector<std::string>& candidates);

}  // namespace gcmoe::cli
