//! Volumes of a pod: those of its host are mounted in an image, and some are there anyhow.

use std::collections::BTreeMap;

use super::draft::Mount;
use super::field::Field;
use super::finding::shown;

/// Reads volumes and where the container has them. What is to be mounted, for a worker with an image.
pub fn read(spec: &Field<'_>, container: &Field<'_>, takes_image: bool) -> Vec<Mount> {
    let mut mounted = Vec::new();
    let mut mounts: BTreeMap<&str, Vec<(Field<'_>, &str)>> = BTreeMap::new();
    for mount in container.get("volumeMounts").items() {
        let (name, path) = (mount.get("name").text(), mount.get("mountPath").text().unwrap_or_default());
        mounts.entry(name.unwrap_or_default()).or_default().push((mount, path));
    }
    for volume in spec.get("volumes").items() {
        match volume.get("name").text().and_then(|name| mounts.remove(name)) {
            Some(places) => {
                for (mount, path) in places {
                    if takes_image && volume.get("hostPath").is_given() {
                        mounted.push(of_host(&volume, &mount, path));
                    } else {
                        at(&volume, &mount, path);
                    }
                }
            }
            None => volume.drop("no container of the worker mounts it"),
        }
    }
    for (mount, path) in mounts.values().flatten() {
        mount.drop(format!("nothing is mounted at {}", shown(path)));
    }
    mounted
}

/// A directory of the host in an image.
fn of_host(volume: &Field<'_>, mount: &Field<'_>, path: &str) -> Mount {
    let plain = |path: &str| path.trim_end_matches('/').to_owned();
    let mut source = plain(volume.at(["hostPath", "path"]).text().unwrap_or_default());
    if let Some(below) = mount.get("subPath").text() {
        source = format!("{source}/{}", plain(below));
    }
    let read_only = mount.get("readOnly").flag() == Some(true);
    Mount { source, target: plain(path), read_only }
}

fn at(volume: &Field<'_>, mount: &Field<'_>, path: &str) {
    let shown_path = shown(path);
    let host = volume.get("hostPath");
    if host.is_given() {
        let own = host.get("path").text().unwrap_or_default();
        if own.trim_end_matches('/') == path.trim_end_matches('/') && !mount.get("subPath").is_given() {
            host.approximate(format!(
                "workers see the directories of their host by the paths that they have there: {shown_path}"
            ));
        } else {
            host.refuse(format!(
                "workers see {} of their host as {}, and not as {shown_path}; nothing is mounted for them",
                shown(own),
                shown(own)
            ));
        }
        return;
    }
    if volume.get("emptyDir").is_there() {
        let is_memory = volume.at(["emptyDir", "medium"]).peek() == Some("Memory");
        if path == "/dev/shm" || is_memory && path.starts_with("/dev/shm/") {
            volume.approximate("workers have /dev/shm; what they keep there counts as their memory");
        } else if path == "/tmp" {
            volume.approximate("workers have a directory for temporary files, which TMPDIR names");
        } else {
            volume
                .drop(format!("no directory is made at {shown_path}; TMPDIR names one for temporary files"));
        }
        return;
    }
    for kind in ["persistentVolumeClaim", "nfs", "csi", "ephemeral"] {
        if volume.get(kind).is_given() {
            volume.drop(format!("no volumes are mounted; have the nodes mount this storage at {shown_path}"));
            return;
        }
    }
    volume.drop(format!(
        "no files are made at {shown_path} from objects of that cluster; put them on the nodes or use secrets"
    ));
}
