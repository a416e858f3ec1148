//! The CPU and the memory that a sidecar requests, and its limits.

use serde_json::{Value as Json, json};

use super::Options;

const CPU: &str = "500m";
const MEMORY: &str = "128Mi";
const MEMORY_LIMIT: &str = "1Gi";

/// An example of each, for messages.
const CPU_EXAMPLE: &str = "must be a number of CPUs with at most three decimal places, or of thousandths, such as 2 or 500m";
const MEMORY_EXAMPLE: &str = "must be a size, such as 256Mi or 1G";

/// Quantities as an API server writes them, so that it does not rewrite them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resources {
    cpu: String,
    memory: String,
    cpu_limit: Option<String>,
}

impl Resources {
    /// # Errors
    /// The option that is wrong, and why.
    pub fn of(options: &Options) -> Result<Self, String> {
        let read =
            |option: &str, given: &Option<String>, read: fn(&str) -> Result<String, String>| {
                let read = given.as_deref().map(read).transpose();
                read.map_err(|why| format!("{option}: {why}"))
            };
        let limit = read("--cpu-limit", &options.cpu_limit, cpu)?;
        let request = read("--cpu-request", &options.cpu_request, cpu)?;
        let memory = read("--memory-request", &options.memory_request, memory)?;
        let is_above = |limit: &Option<String>, request: &str| {
            limit
                .as_deref()
                .is_some_and(|limit| thousandths(request) > thousandths(limit))
        };
        if let (Some(request), Some(given)) = (&request, &limit)
            && is_above(&limit, request)
        {
            return Err(format!(
                "--cpu-request {request} is more than --cpu-limit {given}, which Kubernetes rejects"
            ));
        }
        // A request that nobody has asked for must not prevent a lower limit.
        let default = match is_above(&limit, CPU) {
            true => limit.clone().unwrap_or_default(),
            false => CPU.to_owned(),
        };
        Ok(Self {
            cpu: request.unwrap_or(default),
            memory: memory.unwrap_or_else(|| MEMORY.to_owned()),
            cpu_limit: limit,
        })
    }

    pub fn json(&self) -> Json {
        let mut limits = json!({"memory": MEMORY_LIMIT});
        if let Some(cpu) = &self.cpu_limit {
            limits = json!({"cpu": cpu, "memory": MEMORY_LIMIT});
        }
        json!({"requests": {"cpu": self.cpu, "memory": self.memory}, "limits": limits})
    }

    /// Whether its limits are also its requests.
    pub fn are_equal(&self) -> bool {
        self.cpu_limit.as_ref() == Some(&self.cpu) && bytes(&self.memory) == bytes(MEMORY_LIMIT)
    }

    /// What it requests, for users.
    pub fn describe(&self) -> String {
        let Self { cpu, memory, .. } = self;
        let limit = match &self.cpu_limit {
            Some(limit) => format!("by {limit} CPU"),
            None => format!("by at least {cpu} CPU"),
        };
        format!(
            "its requests by {cpu} CPU and {memory} of memory, and its limits, if any, {limit} and by {MEMORY_LIMIT} of memory"
        )
    }

    /// The same for a pod whose limits are also its requests.
    pub fn describe_equal(&self) -> String {
        let cpu = self.cpu_limit.as_ref().unwrap_or(&self.cpu);
        format!("its requests and limits by {cpu} CPU and by {MEMORY_LIMIT} of memory")
    }
}

/// An amount of CPU.
///
/// # Errors
/// Why it is none.
pub fn cpu(text: &str) -> Result<String, String> {
    match thousandths(text) {
        None => Err(CPU_EXAMPLE.to_owned()),
        Some(0) => Err("must be more than 0".to_owned()),
        Some(amount) if amount % 1000 == 0 => Ok((amount / 1000).to_string()),
        Some(amount) => Ok(format!("{amount}m")),
    }
}

/// An amount of memory, of at most the limit.
///
/// # Errors
/// Why it is none.
pub fn memory(text: &str) -> Result<String, String> {
    let amount = bytes(text).ok_or(MEMORY_EXAMPLE)?;
    if amount == 0 {
        return Err("must be more than 0".to_owned());
    }
    if Some(amount) > bytes(MEMORY_LIMIT) {
        return Err(format!(
            "must be at most {MEMORY_LIMIT}, the sidecar's limit"
        ));
    }
    let is_binary = text.ends_with('i');
    let mut units = UNITS
        .iter()
        .rev()
        .filter(|(unit, _)| unit.is_empty() || unit.ends_with('i') == is_binary);
    let unit = units.find(|(_, size)| amount % size == 0);
    Ok(unit.map_or_else(
        || amount.to_string(),
        |(unit, size)| format!("{}{unit}", amount / size),
    ))
}

/// From the smallest to the largest of each kind.
const UNITS: [(&str, u64); 7] = [
    ("", 1),
    ("Ki", 1 << 10),
    ("k", 1000),
    ("Mi", 1 << 20),
    ("M", 1_000_000),
    ("Gi", 1 << 30),
    ("G", 1_000_000_000),
];

fn bytes(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[number.len()..];
    let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
    decimal(number, *size)
}

fn thousandths(text: &str) -> Option<u64> {
    match text.strip_suffix('m') {
        Some(number) => decimal(number, 1),
        None => decimal(text, 1000),
    }
}

/// A decimal number times `factor`, if that is a whole number.
fn decimal(text: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number =
        |text: &str| (1..=12).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let scale = 10u64.pow(u32::try_from(fraction.len()).ok()?);
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(factor);
    let part = u64::try_from(part / u128::from(scale))
        .ok()
        .filter(|_| part % u128::from(scale) == 0)?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(factor)?
        .checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_and_written_as_an_api_server_does() {
        for (text, written) in [
            ("2", Some("2")),
            ("1000m", Some("1")),
            ("0.5", Some("500m")),
            ("1.25", Some("1250m")),
            ("0.0001", None),
            ("1.5m", None),
            ("0", None),
            ("0.0", None),
            ("-1", None),
            ("+1", None),
            ("1 ", None),
            (" 1", None),
            ("", None),
            ("m", None),
            (".5", None),
            ("5.", None),
            ("1.2.3", None),
            ("1Gi", None),
            ("1e3", None),
            ("99999999999999999999", None),
            ("one", None),
        ] {
            assert_eq!(cpu(text).ok().as_deref(), written, "{text}");
        }
        for (text, written) in [
            ("128Mi", Some("128Mi")),
            ("0.5Gi", Some("512Mi")),
            ("1024Mi", Some("1Gi")),
            ("1.5Mi", Some("1536Ki")),
            ("1000", Some("1k")),
            ("134217728", Some("134217728")),
            ("0.25G", Some("250M")),
            ("1025Mi", None),
            ("2G", None),
            ("0", None),
            ("500m", None),
            ("1gi", None),
            ("1GB", None),
            ("Mi", None),
            ("-1Mi", None),
            ("999999999999Gi", None),
        ] {
            assert_eq!(memory(text).ok().as_deref(), written, "{text}");
        }
    }

    #[test]
    fn a_request_is_never_above_its_limit() {
        let of = |request: Option<&str>, limit: Option<&str>| {
            Resources::of(&Options {
                cpu_request: request.map(str::to_owned),
                cpu_limit: limit.map(str::to_owned),
                ..Options::default()
            })
        };
        assert_eq!(of(None, None).unwrap().cpu, CPU);
        assert_eq!(of(None, Some("200m")).unwrap().cpu, "200m");
        assert_eq!(of(None, Some("2")).unwrap().cpu, CPU);
        assert_eq!(of(Some("2"), None).unwrap().cpu, "2");
        let error = of(Some("2"), Some("1500m")).unwrap_err();
        assert!(
            error.contains("--cpu-request 2 is more than --cpu-limit 1500m"),
            "{error}"
        );
    }
}
