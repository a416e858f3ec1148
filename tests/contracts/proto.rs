//! The protocol in `proto/`: the generated code and descriptors are up to date, and changes are compatible with every release.
//! `make proto` regenerates them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crossfade::state_api::v1;
use prost::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// Set by `make proto`: files that differ are written instead of reported.
const WRITE: &str = "CROSSFADE_WRITE_PROTO";

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The current descriptors of `proto/`.
fn described() -> FileDescriptorSet {
    protox::compile(["crossfade/v1/state.proto"], [package().join("proto")]).unwrap()
}

/// The descriptors without comments and source positions.
fn without_comments(mut files: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut files.file {
        file.source_code_info = None;
    }
    files
}

/// Compares the file at `path` with `wanted`, or writes it.
fn is_or_becomes(path: &str, wanted: &[u8]) {
    let path = package().join(path);
    if std::env::var_os(WRITE).is_some() {
        return std::fs::write(path, wanted).unwrap();
    }
    let found = std::fs::read(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} is outdated: run `make proto`",
        path.display()
    );
}

#[test]
fn the_code_is_what_the_protocol_says() {
    let folder = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .out_dir(folder.path())
        .btree_map(".")
        .emit_rerun_if_changed(false)
        .compile_fds(described())
        .unwrap();
    let code = std::fs::read_to_string(folder.path().join("crossfade.v1.rs")).unwrap();
    let head = "//! Made by `make proto` from `proto/crossfade/v1`: do not edit.\n\n";
    is_or_becomes("src/state_api/v1.rs", (head.to_owned() + &code).as_bytes());
}

#[test]
fn the_descriptors_for_reflection_are_what_the_protocol_says() {
    let bytes = without_comments(described()).encode_to_vec();
    is_or_becomes("src/state_api/v1.binpb", &bytes);
}

/// The promises of a descriptor: every name, with everything on which the encoding or a call depends.
fn promises(files: &FileDescriptorSet) -> BTreeMap<String, String> {
    let mut promises = BTreeMap::new();
    let own = files
        .file
        .iter()
        .filter(|file| file.package() == "crossfade.v1");
    for FileDescriptorProto {
        message_type,
        enum_type,
        service,
        ..
    } in own
    {
        message_type
            .iter()
            .for_each(|message| of_message("", message, &mut promises));
        enum_type
            .iter()
            .for_each(|one| of_enum("", one, &mut promises));
        for service in service {
            for method in &service.method {
                let name = format!("{}.{}", service.name(), method.name());
                let streams = (method.client_streaming(), method.server_streaming());
                let call = format!(
                    "{} -> {} {streams:?}",
                    method.input_type(),
                    method.output_type()
                );
                promises.insert(name, call);
            }
        }
    }
    promises
}

fn of_message(within: &str, message: &DescriptorProto, promises: &mut BTreeMap<String, String>) {
    let name = format!("{within}{}", message.name());
    for field in &message.field {
        let kind = (field.r#type(), field.type_name(), field.label());
        let promise = format!("{} {kind:?} {}", field.number(), field.proto3_optional());
        promises.insert(format!("{name}.{}", field.name()), promise);
    }
    let within = format!("{name}.");
    let nested = message.nested_type.iter();
    nested.for_each(|nested| of_message(&within, nested, promises));
    message
        .enum_type
        .iter()
        .for_each(|one| of_enum(&within, one, promises));
    promises.insert(name, "message".into());
}

fn of_enum(within: &str, one: &EnumDescriptorProto, promises: &mut BTreeMap<String, String>) {
    for value in &one.value {
        let name = format!("{within}{}.{}", one.name(), value.name());
        promises.insert(name, value.number().to_string());
    }
}

/// The promises of `before` that `now` breaks.
fn broken(before: &FileDescriptorSet, now: &FileDescriptorSet) -> Vec<String> {
    let now = promises(now);
    promises(before)
        .into_iter()
        .filter(|(name, promise)| now.get(name) != Some(promise))
        .map(|(name, promise)| format!("{name} was {promise}, is {:?}", now.get(&name)))
        .collect()
}

/// The files of all releases with this ending.
fn released(ending: &str) -> Vec<PathBuf> {
    let folder = package().join("tests/corpus/state");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.to_str().unwrap().ends_with(ending))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no {ending}");
    files
}

#[test]
fn nothing_that_was_released_is_removed_renamed_renumbered_or_retyped() {
    for path in released(".descriptor.binpb") {
        let before = FileDescriptorSet::decode(&*std::fs::read(&path).unwrap()).unwrap();
        assert!(promises(&before).len() > 50, "{}", path.display());
        let broken = broken(&before, &described());
        assert!(broken.is_empty(), "{}: {broken:#?}", path.display());
    }
}

#[test]
fn a_broken_promise_is_detected_and_an_addition_is_allowed() {
    let before = described();
    let changed = |change: fn(&mut FileDescriptorProto)| {
        let mut now = before.clone();
        let own = now
            .file
            .iter_mut()
            .find(|file| file.package() == "crossfade.v1");
        change(own.unwrap());
        (broken(&before, &now).len(), broken(&now, &before).len())
    };
    assert_eq!(changed(|_| {}), (0, 0));
    // A removal in one direction, and an addition in the other.
    let removed = changed(|file| drop(state_of(file).field.remove(0)));
    assert_eq!(removed, (1, 0));
    let renumbered = changed(|file| state_of(file).field[0].number = Some(1000));
    assert_eq!(renumbered, (1, 1));
    let renamed = changed(|file| state_of(file).field[0].name = Some("other".into()));
    assert_eq!(renamed, (1, 1));
    let retyped =
        changed(|file| state_of(file).field[0].type_name = Some(".crossfade.v1.Plan".into()));
    assert_eq!(retyped, (1, 1));
    let value = changed(|file| file.enum_type[0].value[1].number = Some(77));
    assert_eq!(value, (1, 1));
    let method = changed(|file| file.service[0].method[1].server_streaming = Some(false));
    assert_eq!(method, (1, 1));
}

fn state_of(file: &mut FileDescriptorProto) -> &mut DescriptorProto {
    let mut messages = file.message_type.iter_mut();
    messages.find(|message| message.name() == "State").unwrap()
}

#[test]
fn an_enum_starts_with_unspecified() {
    let files = described();
    let own = files
        .file
        .iter()
        .filter(|file| file.package() == "crossfade.v1");
    let enums: Vec<_> = own.flat_map(|file| &file.enum_type).collect();
    assert!(!enums.is_empty());
    for one in enums {
        let first = &one.value[0];
        assert!(
            first.number() == 0 && first.name().ends_with("_UNSPECIFIED"),
            "{}",
            one.name()
        );
    }
}

/// The state in `v1-0.1.0.state.txtpb`.
fn state_of_0_1_0() -> v1::State {
    let time = |seconds, nanos| Some(prost_types::Timestamp { seconds, nanos });
    let lasts = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
    let histogram = |counts: [u64; 3], sum| v1::Histogram {
        bounds: vec![0.005, 0.01],
        cumulative_counts: counts[..2].into(),
        count: counts[2],
        sum,
    };
    let generation = |first: u64| v1::Generation {
        open_streams: first,
        endpoints: Some(v1::Endpoints {
            healthy: 2,
            known: 3,
        }),
        outcomes: Some(v1::Outcomes {
            completed: first + 1,
            truncated: first + 2,
            failed: first + 3,
            cancelled: first + 4,
        }),
        first_event: Some(histogram([1, 2, 4], 1.5)),
        gap: Some(histogram([300, 70_000, 5_000_000_000], 0.25)),
        // Added after 0.1.0.
        stream_duration: None,
        last_minute: None,
        last_five_minutes: None,
        failed_attempts: None,
    };
    v1::State {
        time: time(1_760_000_000, 500_000_000),
        process: Some(v1::Process {
            name: "pod-a".into(),
            version: "0.1.0".into(),
            started: time(1_759_999_000, 0),
            uptime: lasts(1000, 500_000_000),
        }),
        phase: v1::Phase::Draining.into(),
        ready: true,
        plan: Some(v1::Plan {
            epoch: 7,
            source: "plan.yaml".into(),
            resource: Some(v1::Resource {
                namespace: Some("default".into()),
                name: Some("update".into()),
                uid: Some("f7d1".into()),
                generation: Some(12),
            }),
            weights: Some(v1::Weights { old: 3, new: 1 }),
            percent: 25,
            weights_before_cap: Some(v1::Weights { old: 1, new: 1 }),
            max_percent: Some(0),
            old_drains: true,
            since: time(1_759_999_500, 0),
            refusal: Some(v1::Refusal {
                time: time(1_759_999_600, 1),
                source: "plan.yaml".into(),
                problems: vec![v1::Problem {
                    path: "spec.weights".into(),
                    line: Some(6),
                    message: "both are zero".into(),
                }],
            }),
            refused_total: 2,
            source_lost_for: lasts(20, 1),
            remarks: Vec::new(),
            // Came later.
            earlier_requests_that_may_reach_old: None,
            analysis: None,
            new_targets: Vec::new(),
        }),
        assigned_last_minute: Some(v1::Requests { old: 75, new: 25 }),
        split_total: Some(v1::Requests { old: 750, new: 250 }),
        old: Some(generation(10)),
        new: Some(generation(20)),
        recovered_requests: [("connect".into(), 4), ("broken".into(), 1)].into(),
        retries_refused: 5,
        rejected_requests: [("loop".into(), 6)].into(),
        // Came later.
        assigned_last_five_seconds: None,
        answered_last_minute: None,
        quiet_for: None,
        continuations: None,
        recovered: Vec::new(),
        fixed_targets: None,
    }
}

/// A state from an older proxy. Newer fields have their defaults.
#[test]
fn the_state_of_an_older_proxy_is_decoded() {
    let wanted: BTreeMap<&str, v1::State> = [("v1-0.1.0.state.binpb", state_of_0_1_0())].into();
    for path in released(".state.binpb") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let state = v1::State::decode(&*std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(Some(&state), wanted.get(name), "{name}");
    }
}

/// A state from a newer proxy with an unknown phase, an unknown cause, and unknown fields.
#[test]
fn fields_of_a_newer_proxy_are_ignored() {
    let mut known = state_of_0_1_0();
    let mut bytes = known.encode_to_vec();
    // Field 3, a varint: the phase 99.
    bytes.extend([3 << 3, 99]);
    // Field 2, a message of 5 bytes, which is merged: field 500, a string of 2 bytes.
    bytes.extend([2 << 3 | 2, 5, 0xa2, 0x1f, 2, b'h', b'i']);
    // Field 1000: eight bytes.
    bytes.extend([0xc1, 0x3e, 1, 2, 3, 4, 5, 6, 7, 8]);
    let read = v1::State::decode(&*bytes).unwrap();
    assert_eq!(read.phase(), v1::Phase::Unspecified);
    known.phase = 99;
    assert_eq!(read, known);
}
