// A web server in C++: a thread for each connection hands its requests to a pool of four threads, and waits for a future. A job recurses, sorts, calls
// virtual functions and throws exceptions, one of them into the waiting thread. Prints `port N`.
#include <algorithm>
#include <arpa/inet.h>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#define APART __attribute__((noinline, noclone))

struct Shape {
    virtual ~Shape() = default;
    virtual long area(long scale) const = 0;
};

struct Square : Shape {
    long side;
    explicit Square(long of) : side(of) {}
    APART long area(long scale) const override { return side * side * scale; }
};

struct Circle : Shape {
    long radius;
    explicit Circle(long of) : radius(of) {}
    APART long area(long scale) const override {
        if (radius % 7 == 0) throw std::range_error("radius " + std::to_string(radius));
        return radius * radius * 3 * scale;
    }
};

APART long descend(int depth, long value) {
    std::string text = std::to_string(value);
    if (depth == 0) {
        if (value % 3 == 0) throw std::out_of_range(text);
        return value;
    }
    return descend(depth - 1, value + (long)text.size()) + 1;
}

APART long measure_shapes(long seed) {
    std::vector<std::unique_ptr<Shape>> shapes;
    for (long n = 0; n < 30; n++) {
        if ((n + seed) % 2) shapes.push_back(std::make_unique<Square>(n));
        else shapes.push_back(std::make_unique<Circle>(n));
    }
    long sum = 0;
    for (auto &shape : shapes) {
        try {
            sum += shape->area(seed);
        } catch (const std::range_error &error) {
            sum += (long)std::string(error.what()).size();
        }
    }
    return sum;
}

APART long sort_words(long seed) {
    std::map<std::string, long> words;
    for (long n = 0; n < 80; n++) words[std::to_string(n * seed % 101)] += n;
    std::vector<std::pair<std::string, long>> sorted(words.begin(), words.end());
    std::sort(sorted.begin(), sorted.end(), [](auto &a, auto &b) { return a.second > b.second || (a.second == b.second && a.first < b.first); });
    return sorted.front().second * 1000 + (long)sorted.size();
}

APART std::string compute(long seed) {
    long sum = 0;
    for (int depth = 0; depth < 12; depth++) {
        try {
            sum += descend(depth, seed + depth);
        } catch (const std::out_of_range &error) {
            sum += std::stol(error.what());
        }
    }
    sum += measure_shapes(seed) + sort_words(seed);
    if (seed % 2 == 0) throw std::runtime_error("even " + std::to_string(sum));
    return "odd " + std::to_string(sum);
}

class Pool {
    std::mutex lock;
    std::condition_variable arrived;
    std::deque<std::packaged_task<std::string()>> jobs;

    APART void run_job(std::packaged_task<std::string()> job) { job(); }

    APART void serve() {
        for (;;) {
            std::unique_lock<std::mutex> held(lock);
            arrived.wait(held, [this] { return !jobs.empty(); });
            auto job = std::move(jobs.front());
            jobs.pop_front();
            held.unlock();
            run_job(std::move(job));
        }
    }

  public:
    explicit Pool(int threads) {
        for (int n = 0; n < threads; n++) std::thread([this] { serve(); }).detach();
    }

    APART std::future<std::string> submit(std::function<std::string()> function) {
        std::packaged_task<std::string()> job(std::move(function));
        auto result = job.get_future();
        {
            std::lock_guard<std::mutex> held(lock);
            jobs.push_back(std::move(job));
        }
        arrived.notify_one();
        return result;
    }
};

static Pool *pool;

APART std::string wait_for(std::future<std::string> result) {
    try {
        return result.get();
    } catch (const std::runtime_error &error) {
        return error.what();
    }
}

APART std::string handle_request() {
    auto first = pool->submit([] { return compute(7); });
    auto second = pool->submit([] { return compute(8); });
    std::string answer = wait_for(std::move(first));
    return answer + ", " + wait_for(std::move(second));
}

// Ends by an exception when the client has closed the connection.
APART void read_request(FILE *stream) {
    char line[4096];
    for (;;) {
        if (!fgets(line, sizeof line, stream)) throw std::length_error("closed");
        if (line[0] == '\r') return;
    }
}

APART void serve_connection(int socket) {
    FILE *stream = fdopen(socket, "r+");
    try {
        for (;;) {
            read_request(stream);
            std::string body = handle_request();
            fseek(stream, 0, SEEK_CUR);
            fprintf(stream, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", body.size(), body.c_str());
            fflush(stream);
        }
    } catch (const std::length_error &) {
        fclose(stream);
    }
}

int main() {
    signal(SIGPIPE, SIG_IGN);
    pool = new Pool(4);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener, (sockaddr *)&address, size) || listen(listener, 64) || getsockname(listener, (sockaddr *)&address, &size)) return 1;
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int client = accept(listener, nullptr, nullptr);
        if (client >= 0) std::thread(serve_connection, client).detach();
    }
}
