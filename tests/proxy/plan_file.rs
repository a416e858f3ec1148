//! The plan comes from a file: valid changes are applied however the file was changed, and invalid ones are rejected.

use std::fs;
use std::io::Write;

use crate::rig::*;

async fn pair() -> (Upstream, Upstream) {
    (
        Upstream::start(healthy("old")).await,
        Upstream::start(healthy("new")).await,
    )
}

fn all_old(new: &Upstream) -> String {
    manifest(&new.url(), 1, 0, "")
}

fn all_new(new: &Upstream) -> String {
    manifest(&new.url(), 0, 1, "")
}

/// A manifest with a wrong share on its last line.
fn bad(new: &Upstream) -> String {
    manifest(&new.url(), 0, 1, "maxTrafficSplitPercent: 250")
}

async fn rejected(proxy: &Proxy, count: u32) {
    proxy
        .counts("crossfade_plans_rejected_total", &[], count.into())
        .await;
}

#[tokio::test]
async fn a_change_is_applied_no_matter_how_the_file_is_written() {
    let (old, new) = pair().await;
    let mut file = PlanFile::new(&all_old(&new));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proxy.serves("old").await;
    file.write(&all_new(&new));
    proxy.serves("new").await;
    file.replace(&all_old(&new));
    proxy.serves("old").await;
    file.write(&all_new(&new));
    proxy.serves("new").await;
    file.remove();
    file.swap(&all_old(&new));
    std::os::unix::fs::symlink("..data/plan.yaml", file.path()).unwrap();
    proxy.serves("old").await;
    assert!(proxy.metrics().await.sum("crossfade_plan_epoch", &[]) >= 5.0);
    rejected(&proxy, 0).await;
}

/// The directories that a process watches.
fn watches(proxy: &Proxy) -> usize {
    let infos = fs::read_dir(format!("/proc/{}/fdinfo", proxy.pid())).unwrap();
    let infos = infos.filter_map(|info| fs::read_to_string(info.ok()?.path()).ok());
    infos.map(|info| info.matches("inotify wd:").count()).sum()
}

#[tokio::test]
async fn only_the_directory_that_a_link_currently_points_to_is_watched() {
    let (old, new) = pair().await;
    let releases = tempfile::TempDir::new().unwrap();
    let file = PlanFile::new(&all_old(&new));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    let mut last = file.path();
    for number in 0..6 {
        let release = releases.path().join(number.to_string());
        fs::create_dir(&release).unwrap();
        last = release.join("plan.yaml");
        let (text, generation) = match number % 2 {
            0 => (all_new(&new), "new"),
            _ => (all_old(&new), "old"),
        };
        fs::write(&last, text).unwrap();
        let link = file.directory().join("link");
        std::os::unix::fs::symlink(&last, &link).unwrap();
        fs::rename(&link, file.path()).unwrap();
        proxy.serves(generation).await;
    }
    eventually("the earlier ones are closed", async || watches(&proxy) == 2).await;
    fs::write(&last, all_new(&new)).unwrap();
    proxy.serves("new").await;
    // Back to a file in the plan's own directory, which is still watched.
    file.replace(&all_old(&new));
    proxy.serves("old").await;
    eventually("only that one is left", async || watches(&proxy) == 1).await;
    file.write(&all_new(&new));
    proxy.serves("new").await;
}

#[tokio::test]
async fn the_volume_of_a_config_map_is_followed_through_its_swaps() {
    let (old, new) = pair().await;
    let mut file = PlanFile::config_map(&all_old(&new));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    for _ in 0..3 {
        file.swap(&all_new(&new));
        proxy.serves("new").await;
        file.swap(&all_old(&new));
        proxy.serves("old").await;
    }
    rejected(&proxy, 0).await;
}

#[tokio::test]
async fn an_invalid_file_changes_nothing_and_is_explained() {
    let (old, new) = pair().await;
    let file = PlanFile::new(&all_new(&new));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proxy.serves("new").await;
    let epoch = proxy.metrics().await.sum("crossfade_plan_epoch", &[]);
    file.replace(&bad(&new));
    rejected(&proxy, 1).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    let plan = proxy.plan().await;
    assert!(
        plan.contains("spec.maxTrafficSplitPercent") && plan.contains("250"),
        "{plan}"
    );
    let lines = proxy.lines().join("\n");
    assert!(lines.contains("maxTrafficSplitPercent"), "{lines}");
    assert_eq!(
        proxy.metrics().await.sum("crossfade_plan_epoch", &[]),
        epoch
    );
    file.replace(&all_old(&new));
    proxy.serves("old").await;
}

#[tokio::test]
async fn a_change_during_startup_is_not_missed() {
    let (old, new) = pair().await;
    for micros in (0..30_000).step_by(1_500) {
        let file = PlanFile::new(&all_old(&new));
        let (plan, old) = (file.as_str(), old.url());
        let args = ["--old", &*old, "--plan", &plan];
        let starting = Proxy::start(&args);
        let changing = async {
            // Changes the file at different moments of the startup, which the proxy does not report.
            tokio::time::sleep(std::time::Duration::from_micros(micros)).await;
            file.replace(&all_new(&new));
        };
        let (proxy, ()) = tokio::join!(starting, changing);
        proxy.serves("new").await;
    }
}

#[tokio::test]
async fn a_deleted_file_changes_nothing_and_is_reported_once_until_it_returns() {
    let (old, new) = pair().await;
    let file = PlanFile::new(&all_new(&new));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    // An editor that removes the file before it writes another one is not reported.
    file.remove();
    file.write(&all_new(&new));
    rejected(&proxy, 0).await;
    file.remove();
    for _ in 0..20 {
        assert_eq!(proxy.chat().await.generation(), "new");
    }
    rejected(&proxy, 1).await;
    let reported = async || {
        let plan: serde_json::Value = serde_json::from_str(&proxy.plan().await).unwrap();
        plan["lastRejection"].clone()
    };
    let problems = reported().await["problems"].to_string();
    assert!(
        problems.contains("cannot be read: No such file"),
        "{problems}"
    );
    let address = proxy.admin.to_string();
    let shown = proxy::run(&["status", "--proxy", &address]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("cannot be read: No such file"), "{shown}");
    // Longer than the file is polled.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    rejected(&proxy, 1).await;
    let lines = proxy.lines();
    let lost: Vec<_> = { lines.iter() }
        .filter(|line| line.contains("plan lost; the last good one stays in force"))
        .collect();
    assert!(
        lost.len() == 1 && lost[0].to_lowercase().contains("warn"),
        "{lost:?}"
    );
    assert_eq!(proxy.chat().await.generation(), "new");
    // The same plan again.
    file.write(&all_new(&new));
    eventually("it is no longer reported", async || {
        reported().await.is_null()
    })
    .await;
    file.write(&all_old(&new));
    proxy.serves("old").await;
}

#[tokio::test]
async fn a_file_that_can_no_longer_be_read_is_reported() {
    let (old, new) = pair().await;
    let file = PlanFile::new(&all_new(&new));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    file.remove();
    fs::create_dir(file.path()).unwrap();
    rejected(&proxy, 1).await;
    let plan = proxy.plan().await;
    assert!(plan.contains("is not a regular file"), "{plan}");
    assert_eq!(proxy.chat().await.generation(), "new");
}

#[tokio::test]
async fn a_half_written_file_is_not_applied() {
    let (old, new) = pair().await;
    let file = PlanFile::new(&all_new(&new));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proxy.serves("new").await;
    // Up to here, the text is a valid manifest with another meaning: 1 percent instead of 100.
    let text = format!(
        "apiVersion: nvidia.com/v1alpha1\nkind: DynamoUpdateConfig\nspec:\n  newFrontendService: {}\n  trafficSplitPercent: 1",
        new.url()
    );
    let mut writer = fs::File::create(file.path()).unwrap();
    writer.write_all(text.as_bytes()).unwrap();
    writer.flush().unwrap();
    for _ in 0..30 {
        assert_eq!(proxy.chat().await.generation(), "new");
    }
    writer.write_all(b"00\n").unwrap();
    drop(writer);
    eventually("the complete file is applied", async || {
        proxy.plan().await.contains("\"epoch\": 2")
    })
    .await;
    assert!(
        proxy.plan().await.contains("\"trafficSplitPercent\": 100"),
        "{}",
        proxy.plan().await
    );
    assert_eq!(proxy.chat().await.generation(), "new");
}

#[tokio::test]
async fn the_last_good_plan_survives_a_restart_with_a_bad_or_missing_file() {
    let (old, new) = pair().await;
    let state = tempfile::TempDir::new().unwrap();
    let state = state.path().to_str().unwrap();
    let flags = ["--state-dir", state];
    let file = PlanFile::new(&all_new(&new));
    let mut proxy = Proxy::planned(&old, &file, &flags).await;
    proxy.serves("new").await;
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));

    file.write(&bad(&new));
    let mut proxy = Proxy::planned(&old, &file, &flags).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    let plan = proxy.plan().await;
    assert!(plan.contains("spec.maxTrafficSplitPercent"), "{plan}");
    proxy.signal(libc::SIGKILL);
    assert_eq!(proxy.end().await, None);

    file.remove();
    let proxy = Proxy::planned(&old, &file, &flags).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    file.write(&all_old(&new));
    proxy.serves("old").await;
}

#[tokio::test]
async fn a_damaged_state_file_does_not_prevent_startup() {
    let (old, new) = pair().await;
    let state = tempfile::TempDir::new().unwrap();
    let file = PlanFile::new(&all_new(&new));
    let flags = ["--state-dir", state.path().to_str().unwrap()];
    let proxy = Proxy::planned(&old, &file, &flags).await;
    proxy.serves("new").await;
    drop(proxy);
    for entry in fs::read_dir(state.path()).unwrap() {
        fs::write(entry.unwrap().path(), b"\0garbage{").unwrap();
    }
    let proxy = Proxy::planned(&old, &file, &flags).await;
    assert_eq!(proxy.chat().await.generation(), "new");
}

#[tokio::test]
async fn without_any_valid_plan_the_proxy_does_not_start_and_says_why() {
    let (old, new) = pair().await;
    let (wrong, missing) = (PlanFile::new(&bad(&new)), PlanFile::none());
    for (file, expected) in [
        (wrong, "spec.maxTrafficSplitPercent"),
        (missing, "cannot be read"),
    ] {
        let (plan, old) = (file.as_str(), old.url());
        let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let args = [&["proxy", "--old", &*old, "--plan", &plan][..], &ports].concat();
        let output = proxy::run(&args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains(&plan) && stderr.contains(expected),
            "{stderr}"
        );
    }
}

#[tokio::test]
async fn the_plan_page_reports_the_plan_in_force_its_time_and_its_source() {
    let (old, new) = pair().await;
    let more = "sourceDeployment: dgd-old\naffinity: {headers: [x-mine]}";
    let file = PlanFile::new(&manifest(&new.url(), 3, 1, more));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    let plan: serde_json::Value = serde_json::from_str(&proxy.plan().await).unwrap();
    assert_eq!(plan["weights"], serde_json::json!({"old": 3, "new": 1}));
    assert_eq!(plan["identity"]["name"], "test");
    assert_eq!(plan["spec"]["affinity"]["headers"][0], "x-mine");
    assert_eq!(
        plan["withoutEffect"],
        serde_json::json!(["sourceDeployment"])
    );
    assert!(plan["source"].as_str().unwrap().contains("plan.yaml"));
    assert!(plan["since"].as_f64().unwrap() > 1.7e9);
    let endpoints = plan["endpoints"].to_string();
    assert!(
        endpoints.contains(&new.url()) && endpoints.contains(&old.url()),
        "{endpoints}"
    );
}

#[tokio::test]
async fn open_streams_keep_the_plan_they_started_with() {
    let old = Upstream::start(healthy("old")).await;
    let gate = Gate::closed();
    let text = chat_text("new");
    let events: Vec<&str> = text.split_inclusive("\n\n").collect();
    let script = Script::new()
        .sse()
        .events(&events[..2].concat())
        .wait(&gate)
        .events(&events[2..].concat());
    let new = Upstream::always(script).await;
    let file = PlanFile::new(&all_new(&new));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    let mut seen = client.until(events[1]).await;
    // The plan sends everything to old and renames the new servers, so their pool is gone.
    let nobody = Upstream::nobody().to_string();
    file.replace(&manifest(&nobody, 1, 0, ""));
    proxy.counts("crossfade_plan_epoch", &[], 2.0).await;
    proxy.chat().await.assert_is(chat_text("old"));
    gate.open();
    seen += &String::from_utf8(client.body().await).unwrap();
    assert_eq!((seen, client.end), (text.clone(), Some(End::Clean)));
}

#[tokio::test]
async fn a_changed_target_is_applied() {
    let (old, new) = pair().await;
    let newer = Upstream::start(healthy("newer")).await;
    let file = PlanFile::new(&all_new(&new));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proxy.chat().await.assert_is(chat_text("new"));
    file.replace(&all_new(&newer));
    eventually("newer serves", async || {
        proxy.chat().await.text() == chat_text("newer")
    })
    .await;
    let both = format!("{},{}", new.url(), newer.url());
    file.replace(&manifest(&both, 0, 1, ""));
    let count = new.count();
    eventually("both serve", async || {
        proxy.chat().await;
        new.count() > count
    })
    .await;
}

#[tokio::test]
async fn the_cap_holds_the_split_at_a_canary_share() {
    let (old, new) = pair().await;
    let file = PlanFile::new(&manifest(&new.url(), 0, 1, "maxTrafficSplitPercent: 10"));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    for _ in 0..40 {
        proxy.chat().await;
    }
    assert_eq!((old.count(), new.count()), (36, 4));
}
