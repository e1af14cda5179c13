//! Servers of Debian that the long tests measure: how each is configured, started and asked.
//!
//! In files and arguments, `{dir}` is the directory of the server, `{port}` its port and `{second}` another free port.

use super::Ask;
use super::talk::{End, Step};

/// A server of Debian.
pub(super) struct Recipe {
    /// Name of the server's test.
    pub(super) name: &'static str,
    pub(super) program: &'static str,
    pub(super) arguments: &'static [&'static str],
    /// Name and content of each file in the server's directory.
    pub(super) files: &'static [(&'static str, &'static str)],
    pub(super) environment: &'static [(&'static str, &'static str)],
    /// Name of the process that does the work, if it is a descendant of the started one.
    pub(super) worker: Option<&'static str>,
    pub(super) ask: fn(u16) -> Ask,
}

const PLAIN: Recipe =
    Recipe { name: "", program: "", arguments: &[], files: &[], environment: &[], worker: None, ask: Ask::Http };

/// A page of text, which the servers of files have to send.
const PAGE: &str = "a page that is sent again and again, and never changes\n";

pub(super) const RECIPES: &[Recipe] = &[
    Recipe {
        name: "memcached",
        program: "memcached",
        arguments: &["-l", "127.0.0.1", "-p", "{port}", "-U", "0", "-t", "2"],
        ask: |port| {
            let send = "set key 0 0 5\r\nhello\r\nget key\r\nset number 0 0 1\r\n7\r\nget number\r\ndelete absent\r\n";
            let until = End::Suffix(b"NOT_FOUND\r\n".to_vec());
            Ask::Talk { port, steps: vec![Step { send: send.into(), until }] }
        },
        ..PLAIN
    },
    Recipe {
        name: "lighttpd",
        program: "lighttpd",
        arguments: &["-D", "-f", "{dir}/configuration"],
        files: &[
            ("configuration", "server.port = {port}\nserver.bind = \"127.0.0.1\"\nserver.document-root = \"{dir}\"\n"),
            ("field", PAGE),
        ],
        ..PLAIN
    },
    Recipe {
        name: "apache2",
        program: "apache2",
        arguments: &["-X", "-d", "{dir}", "-f", "{dir}/configuration"],
        files: &[
            (
                "configuration",
                "LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so\n\
                 LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
                 LoadModule rewrite_module /usr/lib/apache2/modules/mod_rewrite.so\n\
                 ServerName localhost\nListen 127.0.0.1:{port}\nPidFile {dir}/pid\nErrorLog {dir}/log\n\
                 DefaultRuntimeDir {dir}\nDocumentRoot {dir}/pages\nMaxKeepAliveRequests 0\n\
                 RewriteEngine on\nRewriteRule ^/(f.*d)$ /page/$1\n",
            ),
            ("pages/page/field", PAGE),
        ],
        ..PLAIN
    },
    Recipe {
        name: "unbound",
        program: "unbound",
        arguments: &["-d", "-p", "-c", "{dir}/configuration"],
        files: &[(
            "configuration",
            "server:\n interface: 127.0.0.1\n port: {port}\n username: \"\"\n chroot: \"\"\n directory: \"{dir}\"\n \
             use-syslog: no\n logfile: \"{dir}/log\"\n num-threads: 2\n local-zone: \"field.\" static\n \
             local-data: \"a.field. 60 IN A 192.0.2.1\"\n local-data: \"a.field. 60 IN TXT 'some text'\"\n\
             remote-control:\n control-enable: no\n",
        )],
        ask: |port| Ask::Datagram { port, send: query() },
        ..PLAIN
    },
    Recipe {
        name: "varnish",
        program: "varnishd",
        arguments: &[
            "-F",
            "-j",
            "none",
            "-a",
            "127.0.0.1:{port}",
            "-f",
            "{dir}/field.vcl",
            "-n",
            "{dir}/work",
            "-s",
            "malloc,20m",
        ],
        files: &[(
            "field.vcl",
            "vcl 4.1;\nbackend default none;\nsub vcl_recv { return (synth(200)); }\n\
             sub vcl_synth { set resp.body = regsuball(req.url, \"[a-e]\", \"x\") + \" is here\"; return (deliver); }\n",
        )],
        worker: Some("cache-main"),
        ..PLAIN
    },
    Recipe {
        name: "named",
        program: "named",
        arguments: &["-f", "-c", "{dir}/configuration"],
        files: &[
            (
                "configuration",
                "options { directory \"{dir}\"; listen-on port {port} { 127.0.0.1; }; listen-on-v6 { none; }; \
                 pid-file none; session-keyfile none; recursion no; dnssec-validation no; };\n\
                 controls { };\nzone \"field\" { type primary; file \"zone\"; };\n",
            ),
            (
                "zone",
                "$TTL 60\n@ IN SOA a.field. root.field. 1 60 60 60 60\n@ IN NS a.field.\na IN A 192.0.2.1\n\
                 a IN TXT \"some text\"\n",
            ),
        ],
        ask: |port| Ask::Datagram { port, send: query() },
        ..PLAIN
    },
    Recipe {
        name: "squid",
        program: "squid",
        arguments: &["-N", "-f", "{dir}/configuration"],
        files: &[(
            "configuration",
            "http_port 127.0.0.1:{port}\npid_filename none\ncache_log {dir}/log\naccess_log none\ncache deny all\n\
             coredump_dir {dir}\nhttp_access allow all\nvisible_hostname localhost\npinger_enable off\n\
             shutdown_lifetime 0 seconds\n",
        )],
        ask: |port| page(port, "GET /squid-internal-static/icons/SN.png HTTP/1.0\r\nHost: localhost\r\n\r\n"),
        ..PLAIN
    },
    Recipe {
        name: "mosquitto",
        program: "mosquitto",
        arguments: &["-c", "{dir}/configuration"],
        files: &[("configuration", "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n")],
        // A client connects, leaves a message that stays, and subscribes to it.
        ask: |port| {
            let connect = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00".to_vec();
            let publish = b"\x33\x0c\x00\x05field\x00\x07abc".to_vec();
            let subscribe = b"\x82\x0a\x00\x08\x00\x05field\x00".to_vec();
            let step = |send, length| Step { send, until: End::Bytes(length) };
            Ask::Talk { port, steps: vec![step(connect, 4), step(publish, 4), step(subscribe, 5 + 12)] }
        },
        ..PLAIN
    },
    Recipe {
        name: "slapd",
        program: "slapd",
        arguments: &["-d", "0", "-h", "ldap://127.0.0.1:{port}", "-f", "{dir}/configuration"],
        files: &[("configuration", "include /etc/ldap/schema/core.schema\npidfile {dir}/pid\nthreads 4\n")],
        // An anonymous bind, and a search for the root of the directory.
        ask: |port| {
            let bind = b"\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\x00\x80\x00".to_vec();
            let search = b"\x30\x25\x02\x01\x02\x63\x20\x04\x00\x0a\x01\x00\x0a\x01\x00\x02\x01\x00\x02\x01\x00\x01\x01\x00\x87\x0bobjectClass\x30\x00";
            let done = b"\x30\x0c\x02\x01\x02\x65\x07\x0a\x01\x00\x04\x00\x04\x00".to_vec();
            let steps = vec![
                Step { send: bind, until: End::Bytes(14) },
                Step { send: search.to_vec(), until: End::Suffix(done) },
            ];
            Ask::Talk { port, steps }
        },
        ..PLAIN
    },
    // Each connection passes through the client and the server of one process, and ends at a program of its own.
    Recipe {
        name: "stunnel",
        program: "stunnel4",
        arguments: &["{dir}/configuration"],
        files: &[(
            "configuration",
            "foreground = yes\npid =\ndebug = 3\noutput = {dir}/log\n\
                 [in]\nclient = yes\naccept = 127.0.0.1:{port}\nconnect = 127.0.0.1:{second}\n\
                 [out]\naccept = 127.0.0.1:{second}\ncert = {dir}/certificate.pem\nexec = /bin/cat\nexecArgs = cat\n",
        )],
        ask: |port| Ask::Talk {
            port,
            steps: vec![Step { send: b"there and back again\n".to_vec(), until: End::Bytes(21) }],
        },
        ..PLAIN
    },
    Recipe {
        name: "erlang",
        program: "erl",
        arguments: &["-noshell", "-eval", ERLANG],
        environment: &[("HOME", "{dir}"), ("FIELD_PORT", "{port}")],
        ask: |port| Ask::Talk {
            port,
            steps: vec![Step { send: b"some words\n".to_vec(), until: End::Suffix(b"\n".to_vec()) }],
        },
        ..PLAIN
    },
    Recipe {
        name: "etcd",
        program: "etcd",
        arguments: &[
            "--data-dir",
            "{dir}/data",
            "--log-level",
            "error",
            "--listen-client-urls",
            "http://127.0.0.1:{port}",
            "--advertise-client-urls",
            "http://127.0.0.1:{port}",
            "--listen-peer-urls",
            "http://127.0.0.1:{second}",
            "--initial-advertise-peer-urls",
            "http://127.0.0.1:{second}",
            "--initial-cluster",
            "default=http://127.0.0.1:{second}",
        ],
        ask: |port| {
            let body = "{\"key\":\"Zg==\"}";
            let header = "POST /v3/kv/range HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: ";
            page(port, &format!("{header}{}\r\n\r\n{body}", body.len()))
        },
        ..PLAIN
    },
    Recipe {
        name: "ruby",
        program: "ruby",
        arguments: &["{dir}/field.rb"],
        files: &[("field.rb", RUBY)],
        ask: |port| page(port, "GET /field HTTP/1.0\r\n\r\n"),
        ..PLAIN
    },
    Recipe {
        name: "php",
        program: "php",
        arguments: &["-S", "127.0.0.1:{port}", "{dir}/field.php"],
        files: &[("field.php", PHP)],
        ask: |port| page(port, "GET /field HTTP/1.0\r\nHost: localhost\r\n\r\n"),
        ..PLAIN
    },
    Recipe {
        name: "dovecot",
        program: "dovecot",
        arguments: &["-F", "-c", "{dir}/configuration"],
        files: &[("configuration", DOVECOT)],
        worker: Some("imap-login"),
        ask: |port| {
            let line = |send: &str, end: &str| Step { send: send.into(), until: End::Suffix(end.into()) };
            let steps = vec![
                line("", "ready.\r\n"),
                line("a login field field\r\n", "Logged in\r\n"),
                line("b list \"\" *\r\n", "completed"),
                line("c logout\r\n", "c OK Logout completed"),
            ];
            Ask::Talk { port, steps }
        },
        ..PLAIN
    },
    Recipe {
        name: "rabbitmq",
        program: "/usr/lib/rabbitmq/bin/rabbitmq-server",
        environment: &[
            ("HOME", "{dir}"),
            ("RABBITMQ_MNESIA_BASE", "{dir}"),
            ("RABBITMQ_LOG_BASE", "{dir}"),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", "{dir}/plugins"),
            ("RABBITMQ_NODENAME", "field{port}@localhost"),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1"),
            ("RABBITMQ_NODE_PORT", "{port}"),
            ("RABBITMQ_DIST_PORT", "{second}"),
        ],
        worker: Some("beam.smp"),
        // The server tells its properties, of which the languages are the last.
        ask: |port| {
            let steps =
                vec![Step { send: b"AMQP\x00\x00\x09\x01".to_vec(), until: End::Suffix(b"en_US\xce".to_vec()) }];
            Ask::Talk { port, steps }
        },
        ..PLAIN
    },
];

const ERLANG: &str = "{ok, L} = gen_tcp:listen(list_to_integer(os:getenv(\"FIELD_PORT\")), \
    [binary, {packet, line}, {active, false}, {reuseaddr, true}, {ip, {127, 0, 0, 1}}]), \
    Answer = fun(D) -> H = lists:foldl(fun(_, A) -> erlang:md5(A) end, D, lists:seq(1, 500)), \
        [integer_to_list(binary:decode_unsigned(H), 16), \"\\n\"] end, \
    Serve = fun(G, S) -> case gen_tcp:recv(S, 0) of {ok, D} -> gen_tcp:send(S, Answer(D)), G(G, S); _ -> ok end end, \
    Accept = fun(F) -> {ok, S} = gen_tcp:accept(L), spawn(fun() -> F(F) end), Serve(Serve, S) end, \
    spawn(fun() -> Accept(Accept) end), timer:sleep(infinity).";

const RUBY: &str = "require 'socket'
require 'digest'
server = TCPServer.new('127.0.0.1', {port})
loop do
  Thread.start(server.accept) do |client|
    while (line = client.gets) && line != \"\\r\\n\"; end
    words = (1..300).map { |n| Digest::SHA1.hexdigest(n.to_s) }.sort
    body = \"#{words.first} #{words.last} #{words.join.scan(/a+/).map(&:size).max}\\n\"
    client.write(\"HTTP/1.0 200 OK\\r\\nContent-Length: #{body.size}\\r\\n\\r\\n#{body}\")
    client.close
  end
end
";

const PHP: &str = "<?php
$words = [];
for ($n = 0; $n < 300; $n++) { $words[] = sha1($n); }
sort($words);
preg_match_all('/a+/', implode($words), $found);
echo json_encode([$words[0], count($found[0]), strlen(serialize($words))]);
";

const DOVECOT: &str = "base_dir = {dir}/run
state_dir = {dir}/state
log_path = {dir}/log
protocols = imap
default_vsz_limit = 0
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
default_internal_user = {user}
default_internal_group = {group}
default_login_user = {user}
first_valid_uid = 1
mail_location = maildir:{dir}/mail
passdb {
  driver = static
  args = password=field
}
userdb {
  driver = static
  args = uid={uid} gid={gid} home={dir}
}
service imap-login {
  chroot =
  service_count = 0
  process_min_avail = 1
  inet_listener imap {
    port = {port}
  }
}
service anvil {
  chroot =
}
";

fn page(port: u16, request: &str) -> Ask {
    Ask::Talk { port, steps: vec![Step { send: request.into(), until: End::Page }] }
}

/// A question to a name server for the address of `a.field`.
fn query() -> Vec<u8> {
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x05field\x00\x00\x01\x00\x01".to_vec()
}
