#include <sstream>

#include "gcmoe/capability.hpp"
#include "gcmoe_version.hpp"

namespace gcmoe {

std::vector<std::string> cubins() {
    std::istringstream names{std::string(kCubins)};
    std::vector<std::string> found;
    for (std::string name; names >> name;) found.push_back(name);
    return found;
}

}  // namespace gcmoe
