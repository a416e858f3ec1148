//! The settings of tracing: our own flag and the variables of OpenTelemetry (Environment Variable Specification; OTLP
//! Exporter Configuration).
//!
//! An invalid value is an error at startup, never a silent default. An empty variable counts as absent.

use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "otlp")]
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::trace::Sampler;

use super::endpoint::{BadEndpoint, Endpoint};
use super::protocol::Protocol;
use crate::tls::{self, ClientFiles, Files};

/// Default size of the span queue, as for `OTEL_BSP_MAX_QUEUE_SIZE`.
const QUEUE: usize = 2048;
/// Default timeout for a batch, as for `OTEL_EXPORTER_OTLP_TIMEOUT`.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The name of the flag in errors.
const FLAG: &str = "--otlp-endpoint";

/// Variables with the same meaning: the one for traces overrides the one for all signals.
const ENDPOINT: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
const PROTOCOL: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
const COMPRESSION: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
];
const CERTIFICATE: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
];
const CLIENT_CERTIFICATE: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
];
const CLIENT_KEY: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
];
const LIMIT: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
];

/// Why tracing cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{variable} is not a valid collector address")]
    Endpoint {
        variable: &'static str,
        #[source]
        source: BadEndpoint,
    },
    #[error("{variable}: '{value}' is not supported; known: {known}")]
    Choice {
        variable: &'static str,
        value: String,
        known: String,
    },
    #[error("{variable}: '{value}' is not {wanted}")]
    Number {
        variable: &'static str,
        value: String,
        wanted: &'static str,
    },
    #[error("{variable} does not name a file of certificates")]
    Certificate {
        variable: &'static str,
        #[source]
        source: tls::Error,
    },
    #[error("{given} is set, but not {missing}: a client certificate needs its key")]
    Alone {
        given: &'static str,
        missing: &'static str,
    },
    #[error("cannot use the certificates for the collector")]
    Tls(#[from] tls::Error),
    #[cfg(not(feature = "otlp"))]
    #[error("this build of crossfade cannot export traces: it lacks the feature `otlp`")]
    NoExporter,
    #[cfg(feature = "otlp")]
    #[error("cannot build the span exporter")]
    Exporter(#[source] ExporterBuildError),
}

/// Which spans are exported, and to which collector.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    pub(super) endpoint: Endpoint,
    /// What set the endpoint.
    named: &'static str,
    pub(super) protocol: Protocol,
    pub(super) sampler: Sampler,
    /// `service.name`, if the environment sets it.
    pub(super) service: Option<String>,
    /// The trusted CAs, and the client certificate.
    #[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "the exporter's"))]
    pub(super) tls: ClientFiles,
    /// Whether batches are compressed.
    #[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "the exporter's"))]
    pub(super) gzip: bool,
    /// Timeout for a batch.
    #[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "the exporter's"))]
    pub(super) timeout: Duration,
    /// Size of the span queue.
    pub(super) queue: usize,
}

impl TraceSettings {
    /// All spans to `endpoint` by OTLP over gRPC, except those of traces that their callers do not sample.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            named: FLAG,
            protocol: Protocol::Grpc,
            sampler: parent_based(Sampler::AlwaysOn),
            service: None,
            tls: ClientFiles::default(),
            gzip: false,
            timeout: TIMEOUT,
            queue: QUEUE,
        }
    }

    /// The same over this protocol.
    #[must_use]
    pub fn with_protocol(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// The URL that spans are sent to.
    pub(super) fn url(&self) -> Result<String, Error> {
        let url = self.endpoint.url(self.protocol);
        url.map_err(|source| Error::Endpoint {
            variable: self.named,
            source,
        })
    }

    /// The settings from a flag and the environment; `None` if tracing is off. `variable` looks up a variable.
    ///
    /// # Errors
    /// When a variable has an unsupported value.
    pub fn read(
        flag: Option<Endpoint>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, Error> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let disabled = variable("OTEL_SDK_DISABLED");
        if disabled.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let exporter = choice(&variable, &["OTEL_TRACES_EXPORTER"], &["otlp", "none"])?;
        if exporter.is_some_and(|exporter| exporter == "none") {
            return Ok(None);
        }
        if flag.is_none() && first(&variable, &ENDPOINT).is_none() {
            return Ok(None);
        }
        let protocol = protocol(&variable)?;
        let (named, endpoint) = match flag {
            Some(flag) => (FLAG, flag),
            None => match endpoint(&variable, protocol)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        let compression = choice(&variable, &COMPRESSION, &["gzip", "none"])?;
        let settings = Self {
            named,
            protocol,
            sampler: sampler(&variable)?,
            service: variable("OTEL_SERVICE_NAME"),
            tls: tls(&variable)?,
            gzip: compression == Some("gzip"),
            timeout: timeout(&variable)?,
            queue: queue(&variable)?,
            ..Self::new(endpoint)
        };
        settings.url()?;
        Ok(Some(settings))
    }
}

/// The first of these variables that is set, and its value.
fn first(
    variable: &impl Fn(&str) -> Option<String>,
    names: &[&'static str],
) -> Option<(&'static str, String)> {
    let mut names = names.iter();
    names.find_map(|name| Some((*name, variable(name)?)))
}

fn protocol(variable: &impl Fn(&str) -> Option<String>) -> Result<Protocol, Error> {
    let known = [Protocol::Grpc, Protocol::HttpProtobuf];
    let names = known.map(|known| known.to_string());
    let names = names.each_ref().map(String::as_str);
    let chosen = choice(variable, &PROTOCOL, &names)?;
    let chosen = chosen.and_then(|name| known.into_iter().find(|known| known.to_string() == name));
    Ok(chosen.unwrap_or_default())
}

/// The endpoint in the environment, and the variable that sets it.
fn endpoint(
    variable: &impl Fn(&str) -> Option<String>,
    protocol: Protocol,
) -> Result<Option<(&'static str, Endpoint)>, Error> {
    let Some((variable, value)) = first(variable, &ENDPOINT) else {
        return Ok(None);
    };
    let endpoint = value.trim().parse::<Endpoint>();
    let endpoint = endpoint.map_err(|source| Error::Endpoint { variable, source })?;
    let endpoint = match protocol {
        Protocol::Grpc => endpoint,
        Protocol::HttpProtobuf if variable == ENDPOINT[0] => endpoint.exact(),
        Protocol::HttpProtobuf => endpoint.below(),
    };
    Ok(Some((variable, endpoint)))
}

/// The choice of the first of these variables that is set, among `known`.
fn choice<'a>(
    variable: &impl Fn(&str) -> Option<String>,
    names: &[&'static str],
    known: &[&'a str],
) -> Result<Option<&'a str>, Error> {
    let Some((variable, value)) = first(variable, names) else {
        return Ok(None);
    };
    match known.iter().find(|known| **known == value.trim()) {
        Some(known) => Ok(Some(known)),
        None => Err(Error::Choice {
            variable,
            value,
            known: known.join(", "),
        }),
    }
}

fn sampler(variable: &impl Fn(&str) -> Option<String>) -> Result<Sampler, Error> {
    let known = [
        "parentbased_always_on",
        "parentbased_always_off",
        "parentbased_traceidratio",
        "always_on",
        "always_off",
        "traceidratio",
    ];
    let ratio = || ratio(variable).map(Sampler::TraceIdRatioBased);
    Ok(match choice(variable, &["OTEL_TRACES_SAMPLER"], &known)? {
        Some("parentbased_always_off") => parent_based(Sampler::AlwaysOff),
        Some("parentbased_traceidratio") => parent_based(ratio()?),
        Some("always_on") => Sampler::AlwaysOn,
        Some("always_off") => Sampler::AlwaysOff,
        Some("traceidratio") => ratio()?,
        _ => parent_based(Sampler::AlwaysOn),
    })
}

fn parent_based(root: Sampler) -> Sampler {
    Sampler::ParentBased(Box::new(root))
}

/// The share of traces that are sampled; by default all.
fn ratio(variable: &impl Fn(&str) -> Option<String>) -> Result<f64, Error> {
    let name = "OTEL_TRACES_SAMPLER_ARG";
    let Some(value) = variable(name) else {
        return Ok(1.0);
    };
    let ratio = value.trim().parse().ok();
    ratio
        .filter(|ratio| (0.0..=1.0).contains(ratio))
        .ok_or(Error::Number {
            variable: name,
            value,
            wanted: "a number from 0 to 1",
        })
}

fn queue(variable: &impl Fn(&str) -> Option<String>) -> Result<usize, Error> {
    let name = "OTEL_BSP_MAX_QUEUE_SIZE";
    let Some(value) = variable(name) else {
        return Ok(QUEUE);
    };
    let size = value.trim().parse().ok();
    size.filter(|size| (1..=1_000_000).contains(size))
        .ok_or(Error::Number {
            variable: name,
            value,
            wanted: "a number of spans from 1 to 1000000",
        })
}

fn timeout(variable: &impl Fn(&str) -> Option<String>) -> Result<Duration, Error> {
    let Some((variable, value)) = first(variable, &LIMIT) else {
        return Ok(TIMEOUT);
    };
    let limit = value.trim().parse().ok();
    limit
        .filter(|limit| (1..=3_600_000).contains(limit))
        .map(Duration::from_millis)
        .ok_or(Error::Number {
            variable,
            value,
            wanted: "a number of milliseconds from 1 to 3600000",
        })
}

/// The files of certificates, each of which can be read.
fn tls(variable: &impl Fn(&str) -> Option<String>) -> Result<ClientFiles, Error> {
    let file = |names: &[&'static str; 2]| {
        let Some((variable, path)) = first(variable, names) else {
            return Ok(None);
        };
        let path = PathBuf::from(path);
        match tls::read(&path) {
            Ok(_) => Ok(Some((variable, path))),
            Err(source) => Err(Error::Certificate { variable, source }),
        }
    };
    let alone = |given, missing: &[&'static str; 2]| Error::Alone {
        given,
        missing: missing[1],
    };
    let ca = file(&CERTIFICATE)?.map(|(_, path)| path);
    let identity = match (file(&CLIENT_CERTIFICATE)?, file(&CLIENT_KEY)?) {
        (None, None) => None,
        (Some((_, certificate)), Some((_, key))) => Some((certificate, key)),
        (Some((given, _)), None) => return Err(alone(given, &CLIENT_KEY)),
        (None, Some((given, _))) => return Err(alone(given, &CLIENT_CERTIFICATE)),
    };
    let files = ClientFiles { ca, identity };
    if files != ClientFiles::default() {
        files.load()?;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "http://127.0.0.1:4317";

    fn read(
        flag: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Result<Option<TraceSettings>, String> {
        let flag = flag.map(|flag| flag.parse().expect("an endpoint"));
        let settings = TraceSettings::read(flag, |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        settings.map_err(|error| {
            let source = std::error::Error::source(&error);
            format!(
                "{error}: {}",
                source.map(ToString::to_string).unwrap_or_default()
            )
        })
    }

    fn endpoint_of(flag: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        let settings = read(flag, variables).expect("good");
        settings.map(|settings| settings.url().expect("good"))
    }

    #[test]
    fn traces_are_off_until_an_endpoint_is_given_and_the_nearest_one_counts() {
        let [traces, all] = ENDPOINT;
        assert_eq!(endpoint_of(None, &[]), None);
        assert_eq!(endpoint_of(None, &[(all, ""), (traces, " ")]), None);
        assert_eq!(endpoint_of(None, &[("OTEL_SERVICE_NAME", "x")]), None);
        let all = (all, "http://all:1");
        let traces = (traces, "https://traces:2/");
        assert_eq!(endpoint_of(None, &[all]).as_deref(), Some("http://all:1"));
        let nearest = endpoint_of(None, &[all, traces]);
        assert_eq!(nearest.as_deref(), Some("https://traces:2"));
        assert_eq!(
            endpoint_of(Some(HERE), &[all, traces]).as_deref(),
            Some(HERE)
        );
    }

    #[test]
    fn over_http_a_variable_of_all_signals_names_the_collector_and_the_one_of_traces_the_url() {
        let [traces, all] = ENDPOINT;
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        for (flag, variables, expected) in [
            (Some("http://a:1"), vec![http], "http://a:1/v1/traces"),
            (Some("http://a:1/x"), vec![http], "http://a:1/x"),
            (
                None,
                vec![http, (all, "http://a:1")],
                "http://a:1/v1/traces",
            ),
            (
                None,
                vec![http, (all, "http://a:1/x/")],
                "http://a:1/x/v1/traces",
            ),
            (None, vec![http, (traces, "http://a:1")], "http://a:1/"),
            (None, vec![http, (traces, "http://a:1/x")], "http://a:1/x"),
        ] {
            let url = endpoint_of(flag, &variables);
            assert_eq!(url.as_deref(), Some(expected), "{flag:?} {variables:?}");
        }
    }

    #[test]
    fn the_protocol_of_traces_overrides_that_of_all_signals() {
        let [traces, all] = PROTOCOL;
        let protocol = |variables: &[(&str, &str)]| {
            let settings = read(Some(HERE), variables).expect("good");
            settings.expect("traces are on").protocol
        };
        assert_eq!(protocol(&[]), Protocol::Grpc);
        assert_eq!(protocol(&[(all, "http/protobuf")]), Protocol::HttpProtobuf);
        assert_eq!(
            protocol(&[(all, "http/protobuf"), (traces, "grpc")]),
            Protocol::Grpc
        );
    }

    #[test]
    fn settings_of_other_programs_do_not_matter_while_traces_are_off() {
        let variables = [
            (PROTOCOL[1], "http/json"),
            (COMPRESSION[1], "zstd"),
            (LIMIT[1], "10s"),
        ];
        assert_eq!(endpoint_of(None, &variables), None);
    }

    #[test]
    fn the_environment_can_switch_traces_off() {
        for off in [
            ("OTEL_SDK_DISABLED", "TRUE"),
            ("OTEL_TRACES_EXPORTER", "none"),
        ] {
            assert_eq!(endpoint_of(Some(HERE), &[off]), None, "{off:?}");
        }
        for on in [
            ("OTEL_SDK_DISABLED", "false"),
            ("OTEL_TRACES_EXPORTER", "otlp"),
        ] {
            assert_eq!(
                endpoint_of(Some(HERE), &[on]).as_deref(),
                Some(HERE),
                "{on:?}"
            );
        }
    }

    #[test]
    fn the_sampler_is_the_one_that_is_named() {
        for (name, argument, expected) in [
            ("", "", "ParentBased(AlwaysOn)"),
            ("parentbased_always_on", "0.5", "ParentBased(AlwaysOn)"),
            ("parentbased_always_off", "", "ParentBased(AlwaysOff)"),
            (
                "parentbased_traceidratio",
                "0.25",
                "ParentBased(TraceIdRatioBased(0.25))",
            ),
            ("always_on", "", "AlwaysOn"),
            ("always_off", "", "AlwaysOff"),
            ("traceidratio", "0", "TraceIdRatioBased(0.0)"),
            ("traceidratio", "", "TraceIdRatioBased(1.0)"),
        ] {
            let sampler = ("OTEL_TRACES_SAMPLER", name);
            let argument = ("OTEL_TRACES_SAMPLER_ARG", argument);
            let settings = read(Some(HERE), &[sampler, argument]).expect("good");
            let sampler = settings.expect("traces are on").sampler;
            assert_eq!(format!("{sampler:?}"), expected);
        }
    }

    #[test]
    fn errors_name_the_variable_and_the_valid_values() {
        for (variable, value, right) in [
            (
                "OTEL_TRACES_SAMPLER",
                "jaeger_remote",
                "parentbased_traceidratio",
            ),
            ("OTEL_TRACES_SAMPLER_ARG", "1.1", "0 to 1"),
            ("OTEL_TRACES_SAMPLER_ARG", "-0.1", "0 to 1"),
            ("OTEL_TRACES_SAMPLER_ARG", "NaN", "0 to 1"),
            ("OTEL_TRACES_SAMPLER_ARG", "half", "0 to 1"),
            ("OTEL_TRACES_EXPORTER", "zipkin", "otlp, none"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "HTTP/PROTOBUF", "grpc"),
            (
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
                "http/json",
                "http/protobuf",
            ),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "1 to 3600000"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0", "1 to 3600000"),
            (
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
                "/no/such/file",
                "/no/such/file",
            ),
            (
                "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
                "/etc/passwd",
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
            ),
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "http://collector:4318/v1/traces",
                "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
            ),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "gzip, none"),
            (
                "OTEL_EXPORTER_OTLP_CERTIFICATE",
                "/no/such/file",
                "/no/such/file",
            ),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "1 to"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "1 to"),
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "collector:4317",
                "http://HOST:PORT",
            ),
            (
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                "ftp://a:1",
                "http://HOST:PORT",
            ),
        ] {
            let ratio = ("OTEL_TRACES_SAMPLER", "traceidratio");
            let flag = (!variable.ends_with("ENDPOINT")).then_some(HERE);
            let error = read(flag, &[(variable, value), ratio]).expect_err(variable);
            assert!(error.contains(variable) && error.contains(right), "{error}");
        }
    }
}
