//! Files from many objects, kills of the processes, a start without a network, Secrets.

use std::fs;
use std::path::Path;
use std::time::Duration;

use edgesync_admin::agent::{FilesState, LinkState};
use serde_json::json;

use crate::files::device::{Device, NODE, config_map};
use edgesync_testkit::site::*;

/// A rule that writes a directory for each ConfigMap in `plant`, and counts reloads.
fn counting(site: &Site, settle: &str) -> String {
    let (to, count) = (site.path("out"), site.path("reloads"));
    format!(
        "[[files]]\nname = \"all\"\nobjects = {{ kinds = [\"configmaps\"], namespaces = [\"plant\"] }}\n\
         to = \"{}/{{metadata.name}}\"\nreload = {{ run = [\"/bin/sh\", \"-c\", \"echo >> {}\"] }}\nsettle = \"{settle}\"\n",
        to.display(),
        count.display()
    )
}

fn reloads(site: &Site) -> usize {
    fs::read_to_string(site.path("reloads")).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn thousand_objects_cause_one_reload() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    cloud
        .apply((0..1000).map(|number| config_map(&format!("o{number}"), json!({ "n": number.to_string() }))))
        .await;
    let device = Device::start(&site, &cloud, &counting(&site, "3s")).await;
    let shown = device.all_in_effect("all", 1000).await;
    assert_eq!((reloads(&site), shown.reloads), (1, 1));
    for number in 0..1000 {
        let file = site.path("out").join(format!("o{number}/n"));
        assert_eq!(fs::read_to_string(file).unwrap(), number.to_string());
    }
    device.until_outbox_is_empty().await;
    let status = device.agent.status().await;
    assert_eq!(status.files.unwrap().in_effect, Some(1000));
    let condition = status.conditions.iter().find(|one| one.kind == "edgesync.io/FilesInEffect");
    assert_eq!(condition.unwrap().status, "True");
}

#[tokio::test]
async fn kills_of_agent_and_helper_during_changes_lose_nothing() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let mut device = Device::start(&site, &cloud, &counting(&site, "0s")).await;
    let mut random = Random::seeded();
    let object = |name: usize, edition: usize| {
        config_map(
            &format!("o{name}"),
            json!({ "edition": edition.to_string(), "copy": edition.to_string() }),
        )
    };
    for round in 0..25 {
        cloud.apply((0..20).map(|name| object(name, round))).await;
        tokio::time::sleep(Duration::from_millis(random.next() % 200)).await;
        if round % 2 == 0 {
            device.helper.kill();
            device.start_helper().await;
        } else {
            device.agent.crash().await;
        }
    }
    device.all_in_effect("all", 20).await;
    for name in 0..20 {
        let shown = device.until(&cloud, "all", &object(name, 24), FilesState::InEffect).await;
        assert_eq!(shown.version, shown.desired);
        let directory = site.path("out").join(format!("o{name}"));
        for file in ["edition", "copy"] {
            assert_eq!(fs::read_to_string(directory.join(file)).unwrap(), "24");
        }
        // No partial version remains: a helper that died after it recorded a version removes the
        // previous one with the next request.
        eventually("only one version is there", PATIENCE, async || {
            let entries = fs::read_dir(&directory).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let (versions, mut others): (Vec<String>, Vec<String>) =
                names.partition(|name| name.starts_with("..v"));
            others.sort();
            (versions.len() == 1 && others == ["..data", "copy", "edition"]).then_some(())
        })
        .await;
    }
    device.until_outbox_is_empty().await;
}

#[tokio::test]
async fn files_are_written_before_the_agent_answers_without_a_cloud() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let mut device = Device::start(&site, &cloud, &counting(&site, "0s")).await;
    cloud.apply((0..3).map(|number| config_map(&format!("o{number}"), json!({ "n": "1" })))).await;
    device.all_in_effect("all", 3).await;
    device.until_outbox_is_empty().await;
    device.agent.stop().await;
    cloud.process.kill();
    let before = reloads(&site);
    device.agent.run().await;
    assert_eq!(reloads(&site), before, "what is as it was left is not reloaded");
    device.agent.stop().await;
    // As after a boot, if the files were in memory.
    fs::remove_dir_all(site.path("out")).unwrap();
    device.agent.run().await;
    for number in 0..3 {
        assert_eq!(fs::read_to_string(site.path("out").join(format!("o{number}/n"))).unwrap(), "1");
    }
    let status = device.agent.status().await;
    assert_eq!((status.files.unwrap().in_effect, status.link.state), (Some(3), LinkState::Disconnected));
    // Without the helper the agent runs and reports the problem.
    device.agent.stop().await;
    device.helper.kill();
    device.agent.run().await;
    let files = device.agent.status().await.files.unwrap();
    assert!(files.problem.as_ref().is_some_and(|problem| problem.contains("files.sock")), "{files:?}");
}

#[tokio::test]
async fn lost_database_removes_no_files() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let mut device = Device::start(&site, &cloud, &counting(&site, "0s")).await;
    let object = |name: &str| config_map(name, json!({ "n": "1" }));
    cloud.apply([object("stays"), object("goes")]).await;
    device.all_in_effect("all", 2).await;
    device.until_outbox_is_empty().await;
    device.agent.stop().await;
    cloud.process.kill();
    let before = reloads(&site);
    fs::remove_dir_all(device.agent.database.parent().unwrap()).unwrap();
    device.agent.run().await;
    let there = |name: &str| site.path("out").join(name).join("n").exists();
    assert!(there("stays") && there("goes"), "nobody has said that they are to go");
    cloud.run().await;
    device.all_in_effect("all", 2).await;
    assert_eq!(reloads(&site), before, "nothing has changed");
    cloud.delete(&object("goes")).await;
    device.all_in_effect("all", 1).await;
    assert!(there("stays") && !there("goes"));
    // The cloud has all effects again, although the database that reported them is lost.
    device.until_outbox_is_empty().await;
    let node = cloud.node(NODE).await.unwrap();
    assert_eq!((node.files_in_effect(), node.files_not_in_effect()), (Some(1), Some(0)), "{node:?}");
}

#[tokio::test]
async fn file_updates_touch_only_changed_objects() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let selecting = counting(&site, "0s").replace("[\"plant\"] }", "[\"plant\"], selector = \"app=web\" }");
    let mut device = Device::start(&site, &cloud, &selecting).await;
    let object = |name: &str, app: &str, edition: &str| {
        let mut object = config_map(name, json!({ "edition": edition }));
        object["metadata"]["labels"] = json!({ "app": app });
        object
    };
    let read = |name: &str| fs::read_to_string(site.path("out").join(name).join("edition")).ok();
    let all =
        |editions: [Option<&str>; 3]| ["a", "b", "c"].map(read).each_ref().map(Option::as_deref) == editions;
    cloud.apply(["a", "b", "c"].map(|name| object(name, "web", "1"))).await;
    device.all_in_effect("all", 3).await;
    cloud.apply([object("a", "other", "1")]).await;
    device.all_in_effect("all", 2).await;
    assert!(all([None, Some("1"), Some("1")]));
    // Another object of the same name does not match the selector, and later does.
    cloud.delete(&object("b", "web", "1")).await;
    cloud.apply([object("b", "other", "2")]).await;
    device.all_in_effect("all", 1).await;
    assert!(all([None, None, Some("1")]));
    cloud.apply([object("b", "web", "3")]).await;
    device.until(&cloud, "all", &object("b", "web", "3"), FilesState::InEffect).await;
    assert!(all([None, Some("3"), Some("1")]));
    // A restarted helper knows the others from its record; without the record it requests them.
    for (edition, lost) in [("4", false), ("5", true)] {
        device.helper.kill();
        if lost {
            fs::remove_dir_all(site.path(&format!("{NODE}.files.state"))).unwrap();
        }
        device.start_helper().await;
        cloud.apply([object("c", "web", edition)]).await;
        if lost {
            // Without a record the files count as foreign until their content matches.
            device.until(&cloud, "all", &object("c", "web", edition), FilesState::Conflict).await;
            device.until(&cloud, "all", &object("b", "web", "3"), FilesState::InEffect).await;
        } else {
            device.until(&cloud, "all", &object("c", "web", edition), FilesState::InEffect).await;
        }
        assert!(all([None, Some("3"), Some("4")]));
    }
}

/// Collects the files below a directory that contain these bytes.
fn having(directory: &Path, bytes: &[u8], found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            having(&path, bytes, found);
        } else if fs::read(&path)
            .is_ok_and(|content| content.windows(bytes.len()).any(|window| window == bytes))
        {
            found.push(path.display().to_string());
        }
    }
}

#[tokio::test]
async fn secret_files_stay_in_memory_and_off_the_disk() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("notice: there is no /dev/shm; Secrets in files were not tested");
        return;
    };
    let site = Site::new();
    let cloud_site = Site::new();
    let cloud = Cloud::start(&cloud_site).await;
    let rule = |name: &str, to: &Path| {
        format!(
            "[[files]]\nname = \"{name}\"\nobjects = {{ kinds = [\"secrets\"], namespaces = [\"plant\"] }}\nto = \"{}/{{metadata.name}}\"\n",
            to.display()
        )
    };
    let target = edgesync_testkit::programs::scratch();
    let on_disk = tempfile::tempdir_in(target).unwrap();
    let rules = rule("memory", memory.path());
    let mut device = Device::start(&site, &cloud, &rules).await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "key", "namespace": "plant" },
        "data": { "password": "bm9ib2R5LXJlYWRzLW1l" },
    });
    cloud.apply([secret.clone()]).await;
    device.until(&cloud, "memory", &secret, FilesState::InEffect).await;
    assert_eq!(fs::read_to_string(memory.path().join("key/password")).unwrap(), "nobody-reads-me");
    device.reload(&format!("{rules}{}", rule("disk", on_disk.path()))).await;
    let shown = device.until(&cloud, "disk", &secret, FilesState::NotInEffect).await;
    assert!(shown.message.contains("plain_text_on_disk"), "{shown:?}");
    device.until_outbox_is_empty().await;
    let mut found = Vec::new();
    for directory in [site.path(""), on_disk.path().to_owned()] {
        having(&directory, b"nobody-reads-me", &mut found);
        having(&directory, b"bm9ib2R5LXJlYWRzLW1l", &mut found);
    }
    assert_eq!(found, Vec::<String>::new());
    // The deletion of the rule deletes its files.
    device.reload("").await;
    eventually("the files are gone", PATIENCE, async || (!memory.path().join("key").exists()).then_some(()))
        .await;
}

/// The cloud side has forgotten the state with the record of the object, and the helper has seen no
/// removal: the object counted as not reported.
#[tokio::test]
async fn object_that_returns_before_the_helper_is_reported_again() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, |settings| {
        settings.tables("");
    })
    .await;
    let placed_on = |node: &str| {
        json!({
            "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement", "metadata": { "name": "all" },
            "spec": { "objects": { "kinds": ["configmaps"] }, "nodes": { "names": [node] } },
        })
    };
    let object = config_map("web", json!({ "n": "1" }));
    cloud.apply([object.clone(), placed_on(NODE)]).await;
    let mut device = Device::start(&site, &cloud, &counting(&site, "0s")).await;
    let reported = async || {
        eventually("the cloud side knows the effect", PATIENCE, async || {
            cloud.node(NODE).await.filter(|node| node.files_in_effect() == Some(1))
        })
        .await
    };
    reported().await;
    device.helper.kill();
    cloud.apply([placed_on("another")]).await;
    eventually("the object is removed", PATIENCE, async || {
        device.agent.get(&object).await.is_none().then_some(())
    })
    .await;
    eventually("its state is forgotten", PATIENCE, async || {
        cloud.node(NODE).await.filter(|node| node.files_in_effect() != Some(1))
    })
    .await;
    cloud.apply([placed_on(NODE)]).await;
    eventually("the object is back", PATIENCE, async || device.agent.get(&object).await).await;
    device.start_helper().await;
    reported().await;
}
