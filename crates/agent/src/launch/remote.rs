//! What takes ssh's place: `remote [options] rank-N command…` runs the command in the worker of that rank.
//!
//! The words of the command are joined by spaces and read by a shell, as ssh does. Options before the host are
//! ssh's (`-x`, `-q`), and there is nothing to do for them.

use super::Failure;
use super::protocol::{Hello, HubMessage, Lines, Role, send};
use std::net::TcpStream;

/// Where the hub listens, for `remote`.
pub(super) const HUB_VARIABLE: &str = "MUSTER_LAUNCH_HUB";
/// What it shows there.
pub(super) const SECRET_VARIABLE: &str = "MUSTER_LAUNCH_SECRET";
/// The placement's token.
const TOKEN_VARIABLE: &str = "MUSTER_FENCING_TOKEN";

pub(super) fn run(args: &[&str]) -> Result<i32, Failure> {
    let (rank, shell) = parse(args)?;
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let hub = variable(HUB_VARIABLE)?;
    let stream = TcpStream::connect(&hub).map_err(|e| format!("reach the launcher at {hub}: {e}"))?;
    let lost = |e: std::io::Error| format!("the launcher at {hub} is lost: {e}");
    let role = Role::Remote { secret: variable(SECRET_VARIABLE)?, rank, shell };
    send(&stream, &Hello { token: variable(TOKEN_VARIABLE)?, nonce: String::new(), role }).map_err(lost)?;
    match Lines::of(stream).next().map_err(lost)? {
        Some(HubMessage::Exited { code }) => Ok(code),
        _ => Err("the launcher did not take the command".to_owned()),
    }
}

fn parse(args: &[&str]) -> Result<(usize, String), Failure> {
    let mut words = args.iter().skip_while(|word| word.starts_with('-'));
    let host = words.next().ok_or("no host is given")?;
    let rank = host
        .strip_prefix("rank-")
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("{host} is no host of the gang: they are called rank-0, rank-1 and so on"))?;
    let words: Vec<&str> = words.copied().collect();
    if words.is_empty() {
        return Err("no command is given".to_owned());
    }
    Ok((rank, words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_taken_as_ssh_takes_it() {
        assert_eq!(parse(&["-x", "rank-12", "a;", "b", "-c"]), Ok((12, "a; b -c".to_owned())));
        for bad in
            [&[][..], &["-x"], &["rank-1"], &["host-a", "true"], &["rank-x", "true"], &["rank--1", "true"]]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
