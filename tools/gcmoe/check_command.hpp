// gcmoe check: the accuracy suites through the operator, judged stage by stage.
#pragma once

namespace CLI {
class App;
}

namespace gcmoe {

void add_check_command(CLI::App& app, int* exit_code);

}  // namespace gcmoe
