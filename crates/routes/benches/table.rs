//! Time of a search among 10 and 10,000 routes: `cargo bench -p tailcoat-routes`.
//!
//! Each table has routes of many hosts, prefixes, exact paths and regular expressions. The requests are the same for
//! both. The rounds of both alternate, and the least time of each counts, because other programs only add to it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use routes::{Match, PathMatch, Regexes, RequestView, RouteTable, TableEntry};

/// Searches in a round, for each request.
const SEARCHES: usize = 20_000;

/// Rounds of each table.
const ROUNDS: usize = 15;

struct Request {
    host: &'static str,
    path: &'static str,
}

impl RequestView for Request {
    fn host(&self) -> &[u8] {
        self.host.as_bytes()
    }

    fn path(&self) -> &[u8] {
        self.path.as_bytes()
    }

    fn method(&self) -> &[u8] {
        b"GET"
    }

    fn query(&self) -> &[u8] {
        b""
    }

    fn has_header(&self, _name: &str, _test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        false
    }
}

/// Table of this many routes, of which the first ten are the same in all.
fn table(count: usize) -> RouteTable {
    let matches: Vec<Match> = (0..count)
        .map(|number| {
            let path = match number % 3 {
                0 => PathMatch::Prefix(format!("/team-{number}/service/api")),
                1 => PathMatch::Exact(format!("/team-{number}/service/health")),
                _ => PathMatch::Regex(format!("/team-{number}/v[0-9]+/.*")),
            };
            Match { path: Some(path), ..Match::default() }
        })
        .collect();
    // A quarter has a host name of its own.
    let hosts: Vec<String> = (0..count).map(|number| format!("shop-{}.example.com", number / 4)).collect();
    let entries = matches.iter().enumerate().map(|(number, of)| TableEntry {
        listener: None,
        hostname: (number % 4 == 0).then(|| hosts[number].as_str()),
        of,
        age: (0, "route"),
        position: (number, 0),
        target: number as u32,
    });
    RouteTable::new([None], entries, &mut Regexes::default()).expect("the matches are valid")
}

fn main() {
    let requests = [
        Request { host: "shop-0.example.com", path: "/team-0/service/api/users/1" },
        Request { host: "shop-1.example.com", path: "/team-1/service/health" },
        Request { host: "www.example.com", path: "/team-3/service/api/cart" },
        Request { host: "www.example.com", path: "/team-2/v12/items" },
        Request { host: "www.example.com", path: "/team-7/service/health" },
        Request { host: "shop-2.example.com", path: "/no/such/path" },
    ];
    let tables = [10, 10_000].map(|count| (count, table(count)));
    let mut least = [[Duration::MAX; 6]; 2];
    for _ in 0..ROUNDS {
        for (index, (_, table)) in tables.iter().enumerate() {
            for (request, least) in requests.iter().zip(&mut least[index]) {
                let began = Instant::now();
                for _ in 0..SEARCHES {
                    black_box(table.find(black_box(request)));
                }
                *least = began.elapsed().min(*least);
            }
        }
    }
    println!("{:40} {:>9} {:>12} {:>7}", "request", "10 routes", "10,000 routes", "ratio");
    let nanoseconds = |time: Duration| time.as_nanos() as f64 / SEARCHES as f64;
    for (index, Request { host, path }) in requests.iter().enumerate() {
        let (few, many) = (nanoseconds(least[0][index]), nanoseconds(least[1][index]));
        println!("{:40} {few:>6.0} ns {many:>9.0} ns {:>7.2}", format!("{host}{path}"), many / few);
    }
    let sum = |index: usize| least[index].iter().copied().map(nanoseconds).sum::<f64>();
    println!("{:40} {:>6.0} ns {:>9.0} ns {:>7.2}", "all", sum(0), sum(1), sum(1) / sum(0));
}
