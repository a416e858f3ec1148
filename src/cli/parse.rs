//! Value parsers for flags whose types cannot parse themselves.

use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use http::HeaderName;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, COOKIE, EXPECT, FORWARDED, HOST, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, USER_AGENT, VIA,
};
use http::uri::PathAndQuery;

use crate::analysis::Margins;
use crate::duration::{between, whole_seconds};
use crate::guard::GUARD;
use crate::resource::{AmountSpec, Host, is_object_name};

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let hint = "use IP:PORT, [IPv6]:PORT, HOST:PORT, or :PORT";
    let text = match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => text.to_owned(),
    };
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| format!("{error}; {hint}"))?;
    found.next().ok_or_else(|| hint.to_owned())
}

/// A whole number of this range. Unlike clap's parser, it gives the range in words.
pub(super) fn whole<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let value = text.parse().ok().filter(|value| range.contains(value));
        let (first, last) = (range.start(), range.end());
        value.ok_or_else(|| format!("must be a whole number from {first} to {last}"))
    }
}

/// A size in bytes of this range.
pub(super) fn size<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    let whole = whole(range);
    move |text| {
        let has_unit = text.starts_with(|c: char| c.is_ascii_digit())
            && text.ends_with(|c: char| c.is_ascii_alphabetic());
        whole(text).map_err(|error| match has_unit {
            true => "must be a number of bytes without a unit, such as 1073741824".to_owned(),
            false => error,
        })
    }
}

/// The admin port of a proxy, as `host:port` or as the URL of its page. Empty text stays empty, because it ends a list.
pub(super) fn admin_port(text: &str) -> Result<String, String> {
    let hint = "use HOST:PORT or http://HOST:PORT/";
    if text.is_empty() {
        return Ok(String::new());
    }
    if text.starts_with("https://") {
        return Err(format!("the admin port does not use TLS; {hint}"));
    }
    let text = text.strip_prefix("http://").unwrap_or(text);
    let authority: http::uri::Authority = text
        .strip_suffix('/')
        .unwrap_or(text)
        .parse()
        .map_err(|_| hint.to_owned())?;
    match authority.port_u16() {
        Some(1..) if !authority.host().is_empty() && !authority.as_str().contains('@') => {
            Ok(authority.to_string())
        }
        _ => Err(hint.to_owned()),
    }
}

/// The start of a path, as in a request line: no query, no fragment, nothing to escape.
pub(super) fn path_prefix(text: &str) -> Result<String, String> {
    if !text.starts_with('/') {
        return Err("must start with '/'".to_owned());
    }
    match text.parse::<PathAndQuery>() {
        Ok(parsed) if parsed.as_str() == text && parsed.query().is_none() => Ok(text.to_owned()),
        _ => Err("must be a path without query, fragment, or spaces".to_owned()),
    }
}

/// The argument of a server's command line that sets its port.
pub(super) fn port_flag(text: &str) -> Result<String, String> {
    let is_flag = text.trim_start_matches('-').len() < text.len() && !text.ends_with(['-', '=']);
    match is_flag && text.chars().all(|c| c.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err("is not an argument such as --port".to_owned()),
    }
}

/// The name of an environment variable.
pub(super) fn variable_name(text: &str) -> Result<String, String> {
    let is_of_name = |c: char| c.is_ascii_graphic() && c != '=';
    match !text.is_empty() && text.chars().all(is_of_name) {
        true => Ok(text.to_owned()),
        false => Err("is not the name of a variable".to_owned()),
    }
}

/// A secret. An empty one is not a secret, and usually comes from a variable that was never set.
pub(super) fn secret(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("must not be empty".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// The name of a header that contains only the generation. A header that HTTP, gateways, or this proxy use could be forged or
/// lost.
pub(super) fn override_header(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text
        .parse()
        .map_err(|_| "is not a valid header name".to_owned())?;
    const PREFIXES: [&str; 4] = ["content-", "proxy-", "sec-", "x-forwarded-"];
    const TAKEN: [HeaderName; 15] = [
        ACCEPT,
        ACCEPT_ENCODING,
        AUTHORIZATION,
        CONNECTION,
        COOKIE,
        EXPECT,
        FORWARDED,
        HOST,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
        USER_AGENT,
        VIA,
        GUARD,
    ];
    let is_taken = TAKEN.contains(&name)
        || name == "keep-alive"
        || PREFIXES
            .iter()
            .any(|prefix| name.as_str().starts_with(prefix));
    match is_taken {
        true => Err(format!(
            "'{name}' is reserved; choose another name, such as x-generation"
        )),
        false => Ok(name),
    }
}

pub(super) fn body_field(text: &str) -> Result<String, String> {
    match text.len() {
        1..=256 => Ok(text.to_owned()),
        _ => Err("must be a name of 1 to 256 bytes".to_owned()),
    }
}

/// The first value that occurs twice in `values`.
pub(super) fn repeated<T: PartialEq>(values: &[T]) -> Option<&T> {
    let mut rest = values.iter().enumerate();
    rest.find_map(|(index, value)| values[..index].contains(value).then_some(value))
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "must be a whole number of at least 1".to_owned())
}

/// A duration of at least one millisecond.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match seconds_or_none(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        duration if duration < Duration::from_millis(1) => {
            Err("must be at least 0.001 seconds".to_owned())
        }
        duration => Ok(duration),
    }
}

/// The longest duration: 30 days.
const MAX_SECONDS: u32 = 86_400 * 30;

/// A duration in seconds.
pub(super) fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let number = between(text, 0.0, MAX_SECONDS.into())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

/// A timeout, within the same bounds as in a plan file.
pub(super) fn limit(text: &str) -> Result<f64, String> {
    between(text, 0.001, 86_400.0)
}

/// `judge --window`, within the bounds of `analysis.windowSeconds`.
pub(super) fn window(text: &str) -> Result<Duration, String> {
    let (least, most) = Margins::WINDOW.into_inner();
    between(text, least, most).map(Duration::from_secs_f64)
}

/// Percentage points, within the bounds of `analysis.maxFailureRateIncreasePercent`.
pub(super) fn increase(text: &str) -> Result<f64, String> {
    number(text, 0.0, 100.0)
}

/// A ratio, within the bounds of `analysis.ttftP95Ratio` and `analysis.gapP99Ratio`.
pub(super) fn margin(text: &str) -> Result<f64, String> {
    let (least, most) = Margins::RATIO.into_inner();
    number(text, least, most)
}

/// A confidence, within the bounds of `analysis.confidence`.
pub(super) fn confidence(text: &str) -> Result<f64, String> {
    let (least, most) = Margins::CONFIDENCE.into_inner();
    number(text, least, most)
}

/// A number without unit.
fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Ok(_) => Err(format!("must be from {least} to {most}")),
        Err(_) => Err("is not a number".to_owned()),
    }
}

/// `simulate --rate`.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    number(text, 0.001, 1_000_000.0)
}

/// An amount, such as 1 or `25%`.
pub(super) fn amount(text: &str) -> Result<AmountSpec, String> {
    let amount = match text.parse() {
        Ok(count) => AmountSpec::Count(count),
        Err(_) => AmountSpec::Percent(text.to_owned()),
    };
    match amount.read() {
        Some(_) => Ok(amount),
        None => Err("must be a number, such as 1, or a percentage from 0% to 100%".to_owned()),
    }
}

/// `--hold`, within the bounds of `failover.holdSeconds`.
pub(super) fn hold(text: &str) -> Result<f64, String> {
    between(text, 0.0, 86_400.0)
}

/// `--move-after`, within the bounds of `drain.moveAfterSeconds`.
pub(super) fn move_after(text: &str) -> Result<f64, String> {
    between(text, 0.0, 604_800.0)
}

/// `--probe-interval`, within the bounds of `probe.intervalSeconds`.
pub(super) fn probe_interval(text: &str) -> Result<Duration, String> {
    between(text, 0.1, 86_400.0).map(Duration::from_secs_f64)
}

/// The interval of comments. It must not be too short, because every waiting client gets them.
pub(super) fn comment_interval(text: &str) -> Result<Duration, String> {
    between(text, 0.01, 86_400.0).map(Duration::from_secs_f64)
}

/// `--lease-seconds`.
pub(super) fn lease(text: &str) -> Result<u64, String> {
    whole_seconds(text, 6..=300)
}

/// `inject --drain`. A pod's grace period has no fractions of a second.
pub(super) fn grace(text: &str) -> Result<u64, String> {
    whole_seconds(text, 1..=MAX_SECONDS)
}

/// `set --split`: a whole percentage. The error for a fraction explains the alternative.
pub(super) fn percent(text: &str) -> Result<u8, String> {
    whole_percent(text, |weights| {
        format!(
            "set an exact ratio: kubectl patch duc NAME --type merge \
             -p '{{\"spec\":{{\"weights\":{weights},\"trafficSplitPercent\":null,\"paused\":true}}}}'"
        )
    })
}

/// The same for a proxy, whose plan file can have weights.
pub(super) fn proxy_percent(text: &str) -> Result<u8, String> {
    whole_percent(text, |weights| {
        format!("use a plan file (--plan) with an exact ratio: spec: {{\"weights\":{weights}}}")
    })
}

fn whole_percent(text: &str, instead: impl Fn(String) -> String) -> Result<u8, String> {
    let bare = text.strip_suffix('%').unwrap_or(text);
    match (bare.parse::<u8>(), bare.parse::<f64>()) {
        (Ok(percent @ 0..=100), _) => Ok(percent),
        (Err(_), Ok(fraction)) if (0.0..=100.0).contains(&fraction) => Err(match ratio(fraction) {
            Some(weights) => format!(
                "must be a whole number; for fractions of a percent, {}",
                instead(weights)
            ),
            None => "must be a whole number; for fractions with more than two digits after the point, set spec.weights to the \
                     exact ratio"
                .to_owned(),
        }),
        (_, Ok(_)) => Err("must be from 0 to 100".to_owned()),
        _ => Err("is not a number from 0 to 100".to_owned()),
    }
}

/// The weights that give new `percent` of the requests, if these are whole hundredths of a percent.
fn ratio(percent: f64) -> Option<String> {
    let hundredths = percent * 100.0;
    // Most fractions have no exact binary form, such as 0.29.
    if (hundredths - hundredths.round()).abs() > 1e-9 {
        return None;
    }
    let new = hundredths.round() as u32;
    let (mut a, mut b) = (new, 10_000);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    Some(format!(
        "{{\"old\":{},\"new\":{}}}",
        (10_000 - new) / a,
        new / a
    ))
}

pub(super) fn domain(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    match name.parse::<Host>() {
        Ok(Host::Name(name)) => Ok(name),
        _ => Err("is not a domain such as cluster.local".to_owned()),
    }
}

pub(super) fn host_name(text: &str) -> Result<String, String> {
    match text.parse::<Host>() {
        Ok(Host::Name(name)) => Ok(name),
        _ => Err("is not a host name; addresses are always accepted".to_owned()),
    }
}

/// Whether the text can be in the name of an object or in the value of a label.
fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')
}

/// The name of an object in a cluster. The error for an empty name mentions that a pod gets one from a missing label.
pub(super) fn object_name(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("is empty: does the pod have the label that it is taken from?".to_owned()),
        name if name.chars().all(is_of_a_name) => Ok(name.to_owned()),
        _ => Err("is not the name of an object: use letters, digits, `-`, `.`, and `_`".to_owned()),
    }
}

/// The number of a revision.
pub(super) fn revision(text: &str) -> Result<i64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "must be the number of a revision, such as 1".to_owned())
}

/// The name of an object that a user gives: a DNS subdomain (RFC 1123), as Kubernetes requires.
pub(super) fn kubernetes_name(text: &str) -> Result<String, String> {
    if !is_object_name(text) {
        return Err(
            "is not a name that Kubernetes accepts: use lowercase letters, digits, `-`, and `.`"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_that_kubernetes_accepts() {
        for good in ["default", "chat-frontend", "a.b-1.c"] {
            assert_eq!(kubernetes_name(good).as_deref(), Ok(good));
        }
        for wrong in ["", "Default", "a..b"] {
            assert!(kubernetes_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_prefix_must_be_a_path() {
        for good in ["/", "/v1/", "/generate", "/a%20b"] {
            assert_eq!(path_prefix(good).as_deref(), Ok(good));
        }
        for wrong in ["", "v1/", "/v1?x", "/v1#x", "/a b", "/a\tb"] {
            assert!(path_prefix(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_secret_must_not_be_empty() {
        assert_eq!(secret(" a ").as_deref(), Ok(" a "));
        for wrong in ["", " ", "\n"] {
            assert!(secret(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_override_header_must_not_have_another_meaning() {
        for good in ["x-generation", "X-My-Side"] {
            assert!(override_header(good).is_ok(), "{good}");
        }
        for wrong in [
            "",
            "a b",
            "Host",
            "content-length",
            "x-forwarded-for",
            "keep-alive",
        ] {
            assert!(override_header(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_stay_within_their_bounds() {
        for (good, meant) in [("0.001", 1), ("1.5", 1500), ("2592000", 2_592_000_000)] {
            assert_eq!(seconds(good), Ok(Duration::from_millis(meant)), "{good}");
        }
        for (good, meant) in [
            ("5s", 5_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1h", 3_600_000),
            ("720h", 2_592_000_000),
        ] {
            assert_eq!(seconds(good), Ok(Duration::from_millis(meant)), "{good}");
        }
        for wrong in [
            "0", "0s", "1e-9", "-1", "-1s", "nan", "inf", "2592001", "721h", "1x", "s", "1m30", "",
        ] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!((lease("15s"), lease("1m")), (Ok(15), Ok(60)));
        for wrong in ["5s", "301", "6500ms", "x"] {
            assert!(lease(wrong).is_err(), "{wrong}");
        }
        assert!(limit("0.0005").is_err() && limit("86401").is_err() && hold("0").is_ok());
        assert!(
            move_after("0").is_ok() && move_after("1w").is_err() && move_after("169h").is_err()
        );
        assert!(probe_interval("0.01").is_err() && comment_interval("0.001").is_err());
    }

    #[test]
    fn a_fraction_of_a_percent_is_reported_as_weights() {
        assert_eq!(
            (percent("0"), percent("12"), percent("100%")),
            (Ok(0), Ok(12), Ok(100))
        );
        for (given, said) in [
            ("12.5", "\"weights\":{\"old\":7,\"new\":1}"),
            ("0.01", "\"weights\":{\"old\":9999,\"new\":1}"),
            ("99.99", "\"weights\":{\"old\":1,\"new\":9999}"),
            ("0.29", "\"weights\":{\"old\":9971,\"new\":29}"),
            // No text offers a ratio that differs from the percentage.
            ("0.001", "set spec.weights to the exact ratio"),
            ("0.005", "set spec.weights to the exact ratio"),
            ("33.333", "set spec.weights to the exact ratio"),
            ("99.999", "set spec.weights to the exact ratio"),
            ("101", "from 0 to 100"),
            ("-1", "from 0 to 100"),
            ("nan", "from 0 to 100"),
            ("half", "is not a number"),
        ] {
            let error = percent(given).unwrap_err();
            assert!(error.contains(said), "{given}: {error}");
        }
    }

    #[test]
    fn an_admin_port_is_given_by_host_and_port_or_by_the_address_of_its_page() {
        for (given, meant) in [
            ("127.0.0.1:9464", "127.0.0.1:9464"),
            ("http://127.0.0.1:9464/", "127.0.0.1:9464"),
            ("http://proxy.example:9464", "proxy.example:9464"),
            ("[::1]:9464", "[::1]:9464"),
            ("", ""),
        ] {
            assert_eq!(admin_port(given).as_deref(), Ok(meant), "{given}");
        }
        for wrong in [
            "proxy.example",
            "https://proxy.example:9464",
            "http://proxy.example:9464/plan",
            "me@proxy.example:9464",
            ":9464",
            "proxy.example:0",
            "proxy.example:99999",
            "http://",
        ] {
            assert!(admin_port(wrong).is_err(), "{wrong}");
        }
    }
}
