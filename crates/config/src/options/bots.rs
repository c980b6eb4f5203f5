use std::time::Duration;

use expression::Place;

use super::{KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, any, many, one, property};
use crate::model::PathPattern;
use crate::model::bots::{BotRejection, CrawlerConfig, CustomScore, SIGNAL_NAMES};

pub(super) const DOC: &str = "\
    Scores, challenges and proofs of identity for requests that may come from bots. `bots \"forum\"` turns a preset on, for \
    all sites or in a `site`; options in its block change the preset. A request gets points for each signal, such as \
    a browser without `Accept-Language`. From `challenge-score` on, the response is a page with a short computation, \
    which a signed cookie remembers; from `reject-score` on, the request is rejected. Crawlers and agents that prove \
    who they are need no challenge. Nothing leaves the machine, except lookups of names in DNS. Use these options in \
    `bots`.";

const SCORE: ValueKind = ValueKind::Count { min: 1, max: 1_000 };

/// Options of `bots`.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "challenge-score",
        parameters: &[one("points", ValueKind::CountOrAuto { min: 1, max: 1_000 })],
        default: "challenge-score 30",
        doc: "Score from which the response is a challenge. `auto` is the value of the preset; the preset `api` has no \
              challenges.",
        example: "challenge-score 50",
        known_as: KnownAs::NONE.others(&["anubis", "challenge", "captcha", "testcookie"]),
        set: OptionSetter::Bots(|bots, values| {
            if let Some(points) = values.number_or_auto("points") {
                bots.policy.challenge_score = i16::try_from(points).ok();
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "reject-score",
        parameters: &[one("points", SCORE)],
        default: "reject-score 100",
        doc: "Score from which a request is rejected. Points of header fields no longer count once a challenge is passed.",
        example: "reject-score 80",
        set: OptionSetter::Bots(|bots, values| {
            bots.policy.reject_score = i16::try_from(values.integer::<u64>("points")).ok();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "reject-with",
        parameters: &[one("response", ValueKind::Choice(&["status", "close", "tarpit"]))],
        default: "reject-with status",
        doc: "Response to rejected requests. `status` is 403. `close` closes the connection without a response. \
              `tarpit` keeps it open and sends a byte from time to time, within `tarpit-connections-max` and \
              `tarpit-time` of `limits`. Behind a trusted proxy, all three are 403, because other clients share the \
              connection. Over HTTP/3, `tarpit` closes.",
        example: "reject-with tarpit",
        known_as: KnownAs::NONE.nginx(&["return 444"]).others(&["tarpit", "silent-drop", "444"]),
        set: OptionSetter::Bots(|bots, values| {
            bots.rejection = match values.text("response").as_deref() {
                Some("close") => BotRejection::Close,
                Some("tarpit") => BotRejection::Tarpit,
                _ => BotRejection::Forbidden,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "signal",
        parameters: &[
            one("name", ValueKind::Choice(SIGNAL_NAMES)),
            one("points", ValueKind::Count { min: 0, max: 1_000 }),
        ],
        repeatable: true,
        doc: "Points of a signal. `docs/bots.md` lists signals and their default points. With 0, the signal does not \
              count.",
        example: "signal \"library\" 0",
        set: OptionSetter::Bots(|bots, values| {
            let points = i16::try_from(values.integer::<u64>("points")).unwrap_or(i16::MAX);
            bots.set_points(&values.text("name").unwrap_or_default(), points);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "score",
        parameters: &[
            one("points", ValueKind::Count { min: 1, max: 1_000 }),
            property("path", ValueKind::PathPattern),
            property("when", ValueKind::Condition(Place::Guard)),
        ],
        repeatable: true,
        doc: "Points for requests of a path, or for which a condition holds, such as an expensive page or a network of \
              machines.",
        example: r#"score 20 when="query.page > 50""#,
        known_as: KnownAs::NONE.others(&["weight", "botPolicies"]),
        set: OptionSetter::Bots(|bots, values| {
            let points = i16::try_from(values.integer::<u64>("points")).unwrap_or(i16::MAX);
            let path = values.path_pattern("path").unwrap_or(PathPattern::Any);
            bots.scores.push(CustomScore { points, path, when: values.condition("when") });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "trust",
        parameters: &[
            one("points", ValueKind::Count { min: 1, max: 1_000 }),
            property("path", ValueKind::PathPattern),
            property("when", ValueKind::Condition(Place::Guard)),
        ],
        repeatable: true,
        doc: "As `score`, but the points are subtracted.",
        example: r#"trust 50 when="client in ('192.0.2.0/24')""#,
        set: OptionSetter::Bots(|bots, values| {
            let points = i16::try_from(values.integer::<u64>("points")).unwrap_or(i16::MAX);
            let path = values.path_pattern("path").unwrap_or(PathPattern::Any);
            bots.scores.push(CustomScore { points: -points, path, when: values.condition("when") });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "exempt",
        parameters: &[many("path", ValueKind::PathPattern)],
        repeatable: true,
        doc: "Paths that need no challenge, such as those of programs. They add to those of the preset: feeds, \
              `/robots.txt`, `/.well-known/`, sitemaps, `/api/` and paths of health checks. False crawlers, and \
              crawlers that disobey robots.txt, are rejected there, too.",
        example: r#"exempt "/download/*" "*.ics""#,
        known_as: KnownAs::NONE.others(&["allow-api", "allow-rss"]),
        set: OptionSetter::Bots(|bots, values| bots.exempt.extend(values.path_patterns("path"))),
        ..OPTION
    },
    OptionDefinition {
        name: "crawler",
        parameters: &[
            one("name", ValueKind::Text),
            any("domain", ValueKind::HostSuffix),
            property("ranges", ValueKind::File),
        ],
        repeatable: true,
        doc: "A crawler that `User-Agent` may name, with the ends of the names of its addresses, or a file of its \
              address ranges: JSON as Google, Bing, Apple and OpenAI publish it, or a network on each line. Googlebot, \
              bingbot, Applebot, YandexBot and others are known with their domains. Their addresses are confirmed by \
              DNS, in both directions. The file is read again when it changes.",
        example: r#"crawler "GPTBot" ranges="/etc/tailcoat/gptbot.json""#,
        known_as: KnownAs::NONE.others(&["googlebot", "bingbot", "verified bots", "fcrdns"]),
        set: OptionSetter::Bots(|bots, values| {
            bots.crawlers.push(CrawlerConfig {
                name: values.text("name").unwrap_or_default(),
                domains: values.texts("domain"),
                ranges: values.file("ranges"),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "agent-keys",
        parameters: &[one("agent", ValueKind::Text), one("file", ValueKind::File)],
        repeatable: true,
        doc: "Keys of an agent that signs its requests (HTTP Message Signatures, RFC 9421, as in the drafts of Web Bot \
              Auth): its directory, a JSON Web Key Set with keys of Ed25519. Fetch it from \
              `/.well-known/http-message-signatures-directory` of the agent; the file is read again when it changes.",
        example: r#"agent-keys "chatgpt" "/etc/tailcoat/chatgpt-keys.json""#,
        known_as: KnownAs::NONE.others(&["web bot auth", "signature-agent"]),
        set: OptionSetter::Bots(|bots, values| {
            bots.agent_keys.extend(values.text("agent").zip(values.file("file")));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "enforce-robots",
        parameters: &[one("file", ValueKind::File)],
        doc: "File robots.txt (RFC 9309) whose rules are enforced: a request whose `User-Agent` names a crawler is \
              rejected if the rules disallow its path for that crawler. The file is read again when it changes.",
        example: r#"enforce-robots "/srv/www/robots.txt""#,
        known_as: KnownAs::NONE.others(&["robots.txt"]),
        set: OptionSetter::Bots(|bots, values| bots.robots = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "work-bits",
        parameters: &[one("bits", ValueKind::Count { min: 1, max: 24 })],
        default: "work-bits 15",
        doc: "Difficulty of a challenge at the lowest score: with 15, a browser computes about 33,000 hashes, in less \
              than a second on a phone. Each further bit doubles it. A higher score adds up to 4 bits.",
        example: "work-bits 17",
        known_as: KnownAs::NONE.others(&["difficulty"]),
        set: OptionSetter::Bots(|bots, values| bots.policy.work_bits = values.integer("bits")),
        ..OPTION
    },
    OptionDefinition {
        name: "challenge-wait",
        parameters: &[one("time", ValueKind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(600) })],
        default: "challenge-wait \"10s\"",
        doc: "Time that clients without JavaScript wait before they can go on.",
        example: "challenge-wait \"20s\"",
        set: OptionSetter::Bots(|bots, values| bots.wait = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "pass-time",
        parameters: &[one(
            "time",
            ValueKind::Duration { min: Duration::from_secs(60), max: Duration::from_secs(365 * 86_400) },
        )],
        default: "pass-time \"7d\"",
        doc: "Time for which a passed challenge is remembered, in a signed cookie (`tailcoat-pass`) that is valid for the \
              network and the `User-Agent` of the client. Without JavaScript, it is an hour at most.",
        example: "pass-time \"1d\"",
        set: OptionSetter::Bots(|bots, values| bots.pass_time = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "key-file",
        parameters: &[one("file", ValueKind::File)],
        doc: "File of 32 or more random bytes that sign the cookies, so that they outlive a restart and are valid on \
              several machines. Without it, the process makes a key at its start. Create one with `head -c 32 \
              /dev/urandom`.",
        example: r#"key-file "/etc/tailcoat/bots.key""#,
        set: OptionSetter::Bots(|bots, values| bots.key_file = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "resolver",
        parameters: &[one("address", ValueKind::Text)],
        doc: "Name server for the names of crawlers' addresses: an address, perhaps with a port. By default, it is the \
              first of `/etc/resolv.conf`.",
        example: r#"resolver "127.0.0.53""#,
        known_as: KnownAs::NONE.nginx(&["resolver"]).others(&["resolvers"]),
        set: OptionSetter::Bots(|bots, values| {
            let text = values.text("address").unwrap_or_default();
            let address = text.parse().or_else(|_| text.parse().map(|ip: std::net::IpAddr| (ip, 53).into()));
            bots.resolver = address.ok();
        }),
        ..OPTION
    },
];
