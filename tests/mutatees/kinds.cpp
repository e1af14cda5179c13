// Calls whose arguments are strings and enumerators of C++.
//
// run N   calls `handle` N times; each call answers with a line of JSON that has what an observer should see of it
#include "mutatee.h"
#include <string>
#include <string_view>

namespace shop {
enum class Level : unsigned char { Low = 1, High = 200 };
struct Item {
    std::string name;
    Level level;
};
struct Request {
    long number;
    std::string_view path;
    Item item;
    const Item *other;
};
} // namespace shop

COUNTED long handle(const std::string &name, shop::Level level, const shop::Request &request) {
    __asm__ volatile("" : : "r"(&name), "r"(&request) : "memory");
    return static_cast<long>(level) + request.number;
}

int main() {
    using namespace shop;
    say("ready");
    while (char *line = next_command()) {
        int n;
        if (sscanf(line, "run %d", &n) != 1) return 2;
        for (int i = 0; i < n; i++) {
            // short strings lie in their object
            std::string name(static_cast<size_t>(i % 40), static_cast<char>('a' + i % 26)), path = "/" + name + "/rest";
            Level level = i % 3 == 0 ? Level::Low : i % 3 == 1 ? Level::High : Level(17);
            Item other = {"other-" + std::to_string(i), Level::High};
            Request request = {i, std::string_view(path).substr(0, path.size() - 5), {name + "!", level}, &other};
            long result = handle(name, level, request);
            const char *level_name = i % 3 == 0 ? "\"Low\"" : i % 3 == 1 ? "\"High\"" : "null";
            say("{\"name\":\"%s\",\"level\":%d,\"path\":\"/%s\",\"item\":\"%s!\",\"other\":\"%s\",\"return\":%ld,\"names\":{\"level\":%s}}",
                name.c_str(), static_cast<int>(level), name.c_str(), name.c_str(), other.name.c_str(), result, level_name);
        }
        say("done");
    }
}
