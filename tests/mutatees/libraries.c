/* What zlib, SQLite and OpenSSL are asked for, by this program's own tally and by what the libraries say.
 *
 * zlib N            N rounds of compressing and decompressing, in one piece and in pieces, and of checksums, also by zlib itself
 * pack N            N rounds of compressing and decompressing in one call each
 * sqlite N          once: N rows inserted by one prepared statement, and read again
 * tls N             a connection in memory and N messages each way over it
 * Each answer has `is METRIC VALUE`, times in nanoseconds as `took METRIC NS CALLS`: what a metric must show since the start. */
#include "mutatee.h"
#include <openssl/ssl.h>
#include <sqlite3.h>
#include <time.h>
#include <zlib.h>

static struct tally {
    const char *metric;
    long long value, calls;
} tallies[32];

static void add(const char *metric, long long value) {
    struct tally *t = tallies;
    while (t->metric && strcmp(t->metric, metric)) t++;
    t->metric = metric;
    t->value += value;
}

/* Records `calls` calls that took `ns` nanoseconds together. */
static void took(const char *metric, long long ns, long long calls) {
    add(metric, ns);
    struct tally *t = tallies;
    while (strcmp(t->metric, metric)) t++;
    t->calls += calls;
}

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void need(int holds) {
    if (!holds) abort();
}

static long long checksums;

/* zlib calls these functions instead of its own, so that its checksums of packed data are counted, too. */
uLong crc32(uLong so_far, const Bytef *data, uInt size) {
    checksums++;
    return crc32_z(so_far, data, size);
}

uLong adler32(uLong so_far, const Bytef *data, uInt size) {
    checksums++;
    return adler32_z(so_far, data, size);
}

static void zlib(long n) {
    checksums = 0;
    static unsigned char plain[100000], packed[101000], back[100000];
    for (size_t i = 0; i < sizeof plain; i++) plain[i] = (unsigned char)(i * i >> 8);
    for (long i = 0; i < n; i++) {
        uLongf size = sizeof packed, whole = sizeof back;
        need(compress2(packed, &size, plain, sizeof plain, 1) == Z_OK);
        need(uncompress(back, &whole, packed, size) == Z_OK && !memcmp(plain, back, sizeof plain));
        z_stream stream = {0};
        need(deflateInit(&stream, 1) == Z_OK);
        stream.next_in = plain;
        stream.avail_in = 1000;
        stream.next_out = packed;
        stream.avail_out = sizeof packed;
        need(deflate(&stream, Z_SYNC_FLUSH) == Z_OK);
        stream.avail_in = 1000;
        need(deflate(&stream, Z_FINISH) == Z_STREAM_END);
        size = stream.total_out;
        deflateEnd(&stream);
        memset(&stream, 0, sizeof stream);
        need(inflateInit(&stream) == Z_OK);
        stream.next_in = packed;
        stream.avail_in = (uInt)size;
        stream.next_out = back;
        stream.avail_out = sizeof back;
        need(inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.total_out == 2000);
        inflateEnd(&stream);
        long long own = checksums;
        need(crc32(0, plain, 1000) != crc32(0, packed, 1000) && crc32_z(0, plain, 1) && adler32(1, plain, 1));
        need(own > 0 && checksums == own + 3);
        checksums++; /* crc32_z */
    }
    add("zlib_checksums", checksums);
    add("zlib_compressions", 3 * n);
    add("zlib_decompressions", 2 * n);
    add("zlib_compression_latency", 3 * n);
    add("zlib_decompression_latency", 2 * n);
}

/* By itself: only where every call is timed is the time of all known. */
static void pack(long n) {
    static unsigned char plain[100000], packed[101000], back[100000];
    for (size_t i = 0; i < sizeof plain; i++) plain[i] = (unsigned char)(i * i >> 8);
    long long packing = 0, unpacking = 0;
    for (long i = 0; i < n; i++) {
        z_stream stream = {.next_in = plain, .avail_in = sizeof plain, .next_out = packed, .avail_out = sizeof packed};
        need(deflateInit(&stream, 1) == Z_OK);
        long long begin = now();
        need(deflate(&stream, Z_FINISH) == Z_STREAM_END);
        packing += now() - begin;
        uInt size = (uInt)stream.total_out;
        deflateEnd(&stream);
        z_stream other = {.next_in = packed, .avail_in = size, .next_out = back, .avail_out = sizeof back};
        need(inflateInit(&other) == Z_OK);
        begin = now();
        need(inflate(&other, Z_FINISH) == Z_STREAM_END);
        unpacking += now() - begin;
        inflateEnd(&other);
    }
    took("zlib_compression_time", packing, n);
    took("zlib_decompression_time", unpacking, n);
    took("zlib_compression_latency.sum", packing, n);
    took("zlib_decompression_latency.sum", unpacking, n);
    add("zlib_compressions", n);
    add("zlib_decompressions", n);
}

static int row(void *count, int columns, char **values, char **names) {
    (void)columns, (void)values, (void)names;
    ++*(long *)count;
    return 0;
}

static sqlite3 *db;

static void sqlite(long n) {
    sqlite3_stmt *insert;
    need(sqlite3_prepare_v2(db, "insert into t values (?)", -1, &insert, NULL) == SQLITE_OK);
    long long stepping = 0;
    for (long i = 0; i < n; i++) {
        sqlite3_bind_int64(insert, 1, i);
        long long begin = now();
        need(sqlite3_step(insert) == SQLITE_DONE);
        stepping += now() - begin;
        sqlite3_reset(insert);
    }
    sqlite3_finalize(insert);
    long rows = 0;
    long long begin = now();
    need(sqlite3_exec(db, "select x from t", row, &rows, NULL) == SQLITE_OK);
    stepping += now() - begin;
    need(sqlite3_changes(db) == 1 && rows == sqlite3_total_changes(db));
    took("sqlite_step_time", stepping, n + n + 1);
    add("sqlite_prepares", 2);
    add("sqlite_steps", n + n + 1);
    add("sqlite_rows", n);
    add("sqlite_step_latency", n + n + 1);
    add("sqlite_executions", 1);
}

static SSL *end(SSL_CTX *context, BIO *in, BIO *out, int server) {
    SSL *ssl = SSL_new(context);
    BIO_up_ref(in);
    BIO_up_ref(out);
    SSL_set_bio(ssl, in, out);
    if (server)
        SSL_set_accept_state(ssl);
    else
        SSL_set_connect_state(ssl);
    return ssl;
}

static void tls(long n) {
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
    need(SSL_CTX_set_cipher_list(context, "AECDH-AES128-SHA:@SECLEVEL=0") == 1);
    BIO *up = BIO_new(BIO_s_mem()), *down = BIO_new(BIO_s_mem());
    SSL *client = end(context, down, up, 0), *server = end(context, up, down, 1);
    long long steps = 0, read = 0, written = 0;
    for (int left = 2; left;) {
        steps += 2;
        left = 2 - (SSL_do_handshake(client) == 1);
        left -= SSL_do_handshake(server) == 1;
    }
    char buffer[1000] = {0};
    for (long i = 0; i < n; i++) {
        size_t did;
        written += SSL_write(client, buffer, 1000);
        need(SSL_read_ex(server, buffer, sizeof buffer, &did) == 1);
        read += (long long)did;
        written += SSL_write(server, buffer, 10);
        read += SSL_read(client, buffer, sizeof buffer);
        need(SSL_read(client, buffer, 1) < 0); /* nothing is left to read */
    }
    need(read == written && SSL_session_reused(client) == 0);
    add("tls_handshakes", steps);
    add("tls_writes", 2 * n);
    add("tls_reads", 3 * n);
    add("tls_bytes_asked_to_write", written);
    add("tls_write_latency", 2 * n);
    add("tls_read_latency", 3 * n);
    SSL_free(client);
    SSL_free(server);
    SSL_CTX_free(context);
}

int main(void) {
    /* For a statement that changes tables, SQLite itself executes further statements. */
    need(sqlite3_open(":memory:", &db) == SQLITE_OK);
    need(sqlite3_exec(db, "create table t (x integer)", NULL, NULL, NULL) == SQLITE_OK);
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        if (sscanf(line, "zlib %ld", &n) == 1)
            zlib(n);
        else if (sscanf(line, "pack %ld", &n) == 1)
            pack(n);
        else if (sscanf(line, "sqlite %ld", &n) == 1)
            sqlite(n);
        else if (sscanf(line, "tls %ld", &n) == 1)
            tls(n);
        else
            say("unknown command %s", line);
        for (struct tally *t = tallies; t->metric; t++) {
            if (t->calls)
                say("took %s@ %lld %lld", t->metric, t->value, t->calls);
            else
                say("is %s@ %lld", t->metric, t->value);
        }
        say("done");
    }
    return 0;
}
