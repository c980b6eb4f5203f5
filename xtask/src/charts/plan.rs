//! The charts: which question each answers, from which runs, and how servers are named in them.

/// Meaning of a bar's length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Paired ratio to Tailcoat.
    Ratio,
    /// The figure itself, in the unit of its run; groups with the same unit share a scale.
    Absolute,
    /// The figure itself, each group with a scale of its own.
    AbsolutePerGroup,
}

/// A chart, and the section of the page around it.
pub(super) struct ChartPlan {
    /// BenchPart of its files' names.
    pub(super) name: &'static str,
    pub(super) question: &'static str,
    /// Measured quantity, and the direction that is better.
    pub(super) subtitle: &'static str,
    pub(super) scale: Scale,
    pub(super) groups: &'static [RunGroup],
    /// Names of bars other than `SERVERS` has.
    pub(super) names: &'static [(&'static str, &'static str)],
}

/// Bars with a common heading.
pub(super) struct RunGroup {
    pub(super) label: &'static str,
    /// Name of the run.
    pub(super) run: &'static str,
    /// Start of the part's name; empty: the first part.
    pub(super) part: &'static str,
}

/// Bars in the color of Tailcoat.
pub(super) const OURS: [&str; 13] = [
    "tailcoat",
    "tailcoat-http2",
    "tailcoat-http3",
    "cached",
    "missing",
    "fallback",
    "refused",
    "visitor",
    "component",
    "component-none",
    "http-wasm-fresh",
    "http-wasm-memory",
    "http-wasm-none",
];

/// The base of ratios.
pub(super) const BASE: &str = "tailcoat";

/// The second measurement of Tailcoat, whose ratio to the first is the control.
pub(super) const CONTROL: &str = "tailcoat-again";

/// Servers that have no bar.
pub(super) const CONTROLS: [&str; 4] = [CONTROL, "component-again", "http-wasm-fresh-again", "undisturbed"];

/// Servers in the order of their bars, with the name that readers know.
pub(super) const SERVERS: [(&str, &str); 44] = [
    ("tailcoat", "Tailcoat"),
    ("cached", "Tailcoat, cache hit"),
    ("missing", "Tailcoat, 404"),
    ("fallback", "Tailcoat, files first"),
    ("refused", "Tailcoat, rejected"),
    ("visitor", "Tailcoat, visitor"),
    ("tailcoat-http2", "Tailcoat, HTTP/2"),
    ("tailcoat-http3", "Tailcoat, HTTP/3"),
    ("nginx", "nginx"),
    ("nginx-missing", "nginx, 404"),
    ("nginx-fallback", "nginx, files first"),
    ("nginx-proxy", "nginx"),
    ("nginx-tls", "nginx"),
    ("nginx-http3", "nginx"),
    ("nginx-fastcgi", "nginx"),
    ("nginx-php", "nginx + php-fpm"),
    ("nginx-fastcgi-c", "nginx + C program"),
    ("nginx-compression", "nginx"),
    ("nginx-auth", "nginx"),
    ("nginx-disk-cache", "nginx"),
    ("haproxy", "HAProxy"),
    ("haproxy-compression", "HAProxy"),
    ("haproxy-http3", "HAProxy"),
    ("haproxy-unlogged", "HAProxy, no log"),
    ("h2o", "h2o"),
    ("h2o-tls", "h2o"),
    ("lighttpd", "lighttpd"),
    ("caddy", "Caddy"),
    ("caddy-proxy", "Caddy"),
    ("caddy-tls", "Caddy"),
    ("caddy-http3", "Caddy"),
    ("caddy-fastcgi", "Caddy"),
    ("caddy-compression", "Caddy"),
    ("caddy-auth", "Caddy"),
    ("apache", "Apache"),
    ("apache-fastcgi", "Apache"),
    ("apache-cgi", "Apache"),
    ("file", "static file"),
    ("component", "fresh"),
    ("component-none", "reused"),
    ("wasmtime-serve", "wasmtime serve"),
    ("http-wasm-fresh", "fresh"),
    ("http-wasm-memory", "restored"),
    ("http-wasm-none", "reused"),
];

/// The reference that is no server.
pub(super) const FLOOR: (&str, &str) = ("floor", "C: recv, send");

const CPU_RATIO: &str = "CPU time per response, Tailcoat = 1. Shorter is better.";

const fn group(label: &'static str, run: &'static str, part: &'static str) -> RunGroup {
    RunGroup { label, run, part }
}

pub(super) const PLANS: [ChartPlan; 28] = [
    ChartPlan {
        name: "small-files",
        question: "How much CPU time does a small file need?",
        subtitle: CPU_RATIO,
        scale: Scale::Ratio,
        groups: &[group("1 KiB, 64 keep-alive connections", "keepalive-64", "")],
        names: &[],
    },
    ChartPlan {
        name: "connections",
        question: "Does that depend on the connections?",
        subtitle: CPU_RATIO,
        scale: Scale::Ratio,
        groups: &[
            group("512 keep-alive connections", "keepalive-512", ""),
            group("16 pipelined requests", "pipelined", ""),
            group("ten requests per connection", "ten", ""),
            group("one request per connection", "close", ""),
            group("10 % status 304, 10 % ranges", "mixed-conditional", ""),
        ],
        names: &[],
    },
    ChartPlan {
        name: "sizes",
        question: "How much CPU time do larger files need?",
        subtitle: CPU_RATIO,
        scale: Scale::Ratio,
        groups: &[
            group("16 KiB", "sizes-16KiB", ""),
            group("100 KiB", "sizes-100KiB", ""),
            group("1 MiB", "sizes-1MiB", ""),
            group("100 MiB", "sizes-100MiB", ""),
        ],
        names: &[],
    },
    ChartPlan {
        name: "many-files",
        question: "What if there are 100,000 files?",
        subtitle: "CPU time per response, Zipf access, Tailcoat = 1. Shorter is better.",
        scale: Scale::Ratio,
        groups: &[group("512 bytes to 32 KiB, 64 connections", "zipf", "")],
        names: &[],
    },
    ChartPlan {
        name: "http2",
        question: "How much CPU time does HTTP/2 need?",
        subtitle: "CPU time per response with TLS 1.3, Tailcoat = 1. Shorter is better.",
        scale: Scale::Ratio,
        groups: &[
            group("1 KiB, 8 connections of 64 streams", "http2-8x64", ""),
            group("1 KiB, 64 connections of one stream", "http2-64x1", ""),
            group("16 KiB, 8 connections of 64 streams", "http2-16KiB", ""),
            group("1 MiB, 4 connections of 4 streams", "http2-1MiB", ""),
        ],
        names: &[],
    },
    ChartPlan {
        name: "page",
        question: "How soon is a whole page there?",
        subtitle: "20 files, HTTP/2, new connection, 50 ms round trip, 20 Mbit/s. Shorter is better.",
        scale: Scale::Absolute,
        groups: &[group("time to the last byte", "page", "")],
        names: &[],
    },
    ChartPlan {
        name: "http3",
        question: "How much CPU time does HTTP/3 need?",
        subtitle: CPU_RATIO,
        scale: Scale::Ratio,
        groups: &[
            group("1 KiB, 8 connections of 64 streams", "http3-8x64", ""),
            group("1 KiB, 64 connections of one stream", "http3-64x1", ""),
            group("16 KiB, 8 connections of 8 streams", "http3-16KiB", ""),
            group("1 MiB, 4 connections of 4 streams", "http3-1MiB", ""),
        ],
        names: &[],
    },
    ChartPlan {
        name: "http3-handshakes",
        question: "What does a new connection of HTTP/3 cost?",
        subtitle: "CPU time of a handshake and one 1 KiB response, Tailcoat = 1. Shorter is better.",
        scale: Scale::Ratio,
        groups: &[
            group("full handshake", "http3-handshake", ""),
            group("resumed handshake", "http3-resumed", ""),
            group("early data (0-RTT)", "http3-early", ""),
        ],
        names: &[],
    },
    ChartPlan {
        name: "http3-flood",
        question: "What does a flood of first packets cost other clients?",
        subtitle: "p99 of 16 clients with 2,000 requests/s in all, HTTP/3. Shorter is better.",
        scale: Scale::Absolute,
        groups: &[
            group("no flood", "http3-flood", "calm"),
            group("first packets from forged addresses, at full rate", "http3-flood", "flooded"),
        ],
        names: &[],
    },
    ChartPlan {
        name: "page-loss",
        question: "What if the line loses packets?",
        subtitle: "20 files of Tailcoat, new connection, 50 ms round trip, 20 Mbit/s. Shorter is better.",
        scale: Scale::AbsolutePerGroup,
        groups: &[
            group("no loss", "page-loss", "loss-0"),
            group("2 % lost", "page-loss", "loss-2"),
            group("10 % lost", "page-loss", "loss-10"),
        ],
        names: &[("tailcoat-http2", "HTTP/2"), ("tailcoat-http3", "HTTP/3")],
    },
    ChartPlan {
        name: "tls",
        question: "How much CPU time does TLS need?",
        subtitle: "CPU time per 1 KiB response, TLS 1.3, Tailcoat = 1. Shorter is better.",
        scale: Scale::Ratio,
        groups: &[
            group("keep-alive", "tls-keep-alive", ""),
            group("full handshake, P-256", "tls-handshake-p256", ""),
            group("full handshake, X25519", "tls-handshake-x25519", ""),
            group("resumed handshake", "tls-resumed", ""),
        ],
        names: &[],
    },
    ChartPlan {
        name: "proxying",
        question: "How much CPU time does a reverse proxy need?",
        subtitle: "CPU time per response or upload, Tailcoat = 1. Shorter is better.",
        scale: Scale::Ratio,
        groups: &[
            group("1 KiB, 64 connections", "forwarding-1KiB", ""),
            group("64 KiB, 64 connections", "forwarding-64KiB", ""),
            group("10 MiB, 8 connections", "forwarding-10MiB", ""),
            group("upload of 10 MiB, 4 connections", "forwarding-upload", ""),
        ],
        names: &[],
    },
    ChartPlan {
        name: "proxy-latency",
        question: "How much latency does a reverse proxy add?",
        subtitle: "Open loop, half of the slowest proxy's capacity. Shorter is better.",
        scale: Scale::AbsolutePerGroup,
        groups: &[
            group("median", "forwarding-latency", "latency p50"),
            group("p99", "forwarding-latency", "latency p99"),
        ],
        names: &[],
    },
    ChartPlan {
        name: "cache",
        question: "What does a cache hit cost?",
        subtitle: "CPU time per 1 KiB response, a file = 1. Shorter is better.",
        scale: Scale::Ratio,
        groups: &[group("64 keep-alive connections", "forwarding-cached", "")],
        names: &[("tailcoat", "static file"), ("cached", "cache hit")],
    },
    ChartPlan {
        name: "disk-cache",
        question: "What does a cache hit from disk cost?",
        subtitle: CPU_RATIO,
        scale: Scale::Ratio,
        groups: &[
            group("16 KiB, 8,192 responses", "disk-cache", "16KiB"),
            group("64 KiB, 2,048 responses", "disk-cache", "64KiB"),
        ],
        names: &[],
    },
    ChartPlan {
        name: "compression",
        question: "How much CPU time does compression need?",
        subtitle: CPU_RATIO,
        scale: Scale::Ratio,
        groups: &[
            group("32 KiB of text, gzip, fast", "compression", "gzip-fast"),
            group("32 KiB of text, gzip, balanced", "compression", "gzip-balanced"),
            group("32 KiB of text, Zstandard", "compression", "zstd"),
        ],
        names: &[],
    },
    ChartPlan {
        name: "forward-auth",
        question: "What does a question to an authentication server cost?",
        subtitle: CPU_RATIO,
        scale: Scale::Ratio,
        groups: &[group("1 KiB, 64 connections", "forward-auth", "")],
        names: &[],
    },
    ChartPlan {
        name: "absent",
        question: "What does a path without a file cost?",
        subtitle: "CPU time per response, a 1 KiB file = 1. Shorter is better.",
        scale: Scale::Ratio,
        groups: &[group("status 404, 64 keep-alive connections", "absent-404", "")],
        names: &[("tailcoat", "static file"), ("missing", "404"), ("nginx-missing", "nginx 404")],
    },
    ChartPlan {
        name: "bots",
        question: "What does a request cost that `bots` assesses?",
        subtitle: "CPU time per response, a 1 KiB file without `bots` = 1. Shorter is better.",
        scale: Scale::Ratio,
        groups: &[group("64 keep-alive connections", "bots", "")],
        names: &[("tailcoat", "file, no bots"), ("refused", "rejected"), ("visitor", "visitor")],
    },
    ChartPlan {
        name: "fallback",
        question: "What does it cost to look for a file before proxying?",
        subtitle: "CPU time per proxied 1 KiB response, without a root = 1. Shorter is better.",
        scale: Scale::Ratio,
        groups: &[group("64 keep-alive connections", "absent-fallback", "")],
        names: &[("tailcoat", "no root"), ("fallback", "root first"), ("nginx-fallback", "nginx try_files")],
    },
    ChartPlan {
        name: "fastcgi",
        question: "How much CPU time do scripts need?",
        subtitle: "CPU time per \u{201c}Hello, world!\u{201d}, Tailcoat = 1. Shorter is better.",
        scale: Scale::Ratio,
        groups: &[
            group("FastCGI, without php-fpm's time", "fastcgi", ""),
            group("CGI, with the program's time", "cgi", ""),
        ],
        names: &[],
    },
    ChartPlan {
        name: "modules",
        question: "What does a WebAssembly module cost?",
        subtitle: "CPU time per response. Shorter is better.",
        scale: Scale::Absolute,
        groups: &[
            group("component, by kind of instance", "module", "modules"),
            group("http-wasm guest, by kind of instance", "module-http-wasm", "modules"),
        ],
        names: &[],
    },
    ChartPlan {
        name: "web99",
        question: "How much CPU time does a dynamic page need?",
        subtitle: "CPU time per GET of the web99 workload, Tailcoat = 1. Shorter is better.",
        scale: Scale::Ratio,
        groups: &[group("GET", "web99", "get"), group("GET with ad rotation", "web99", "rotation")],
        names: &[("tailcoat", "Tailcoat, module")],
    },
    ChartPlan {
        name: "idle-memory",
        question: "How much memory does an idle connection need?",
        subtitle: "User memory per connection, 2,000 to 12,000 connections. Shorter is better.",
        scale: Scale::AbsolutePerGroup,
        groups: &[group("HTTP/1.1", "idle", ""), group("HTTP/1.1 with TLS", "idle-tls", "")],
        names: &[],
    },
    ChartPlan {
        name: "slow-readers",
        question: "Do slow clients disturb fast ones?",
        subtitle: "5,000 slow readers of 1 MiB beside fast clients. Shorter is better.",
        scale: Scale::Absolute,
        groups: &[
            group("p99 of fast clients / undisturbed", "slow-readers", "latency"),
            group("user memory per slow reader", "slow-readers", "memory"),
        ],
        names: &[],
    },
    ChartPlan {
        name: "cold-disk",
        question: "Does a slow disk disturb requests from memory?",
        subtitle: "p99 beside clients of cold files, as a multiple of undisturbed. Shorter is better.",
        scale: Scale::Absolute,
        groups: &[group("2,000 requests/s, disk at 20 MiB/s", "cold-disk", "")],
        names: &[],
    },
    ChartPlan {
        name: "overload",
        question: "What is still served at twice the capacity?",
        subtitle: "Goodput as a share of capacity, time-out 5 s. Longer is better.",
        scale: Scale::Absolute,
        groups: &[
            group("static file of 1 KiB", "overload-static", "static: goodput"),
            group("reverse proxy, upstream with 8 slots", "overload-proxy", "proxy: goodput"),
        ],
        names: &[],
    },
    ChartPlan {
        name: "start",
        question: "How fast does the server start?",
        subtitle: "From exec to the first complete response. Shorter is better.",
        scale: Scale::Absolute,
        groups: &[group("one file, cold process", "start", "")],
        names: &[],
    },
];
