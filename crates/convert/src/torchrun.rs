//! Commands that begin with PyTorch's launcher.

/// What a command begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Torchrun {
    /// Something else.
    None,
    /// The launcher: the program behind it, and the options before.
    Program {
        /// Program and arguments.
        command: Vec<String>,
        /// What the launcher was told.
        options: Vec<String>,
    },
    /// The launcher in a form that is not taken apart, and why.
    Unknown(&'static str),
}

/// Options of torchrun that have no value.
const FLAGS: [&str; 5] = ["standalone", "no-python", "module", "run-path", "use-env"];

/// Takes the launcher from a command.
pub fn unwrap(command: &[String]) -> Torchrun {
    let mut words = command.iter().map(String::as_str);
    let Some(first) = words.next() else { return Torchrun::None };
    let name = first.rsplit('/').next().unwrap_or_default();
    let mut python = "python3";
    if name.starts_with("python") {
        python = first;
        let module = (words.next(), words.next());
        let launchers = ["torch.distributed.run", "torch.distributed.launch", "torchrun"];
        if module.0 != Some("-m") || !module.1.is_some_and(|module| launchers.contains(&module)) {
            return Torchrun::None;
        }
    } else if name != "torchrun" {
        let is_shell = ["sh", "bash", "dash", "zsh"].contains(&name);
        let is_within =
            command.iter().any(|word| word.contains("torchrun") || word.contains("torch.distributed."));
        return match is_shell && is_within {
            true => Torchrun::Unknown(
                "torchrun is within a line for a shell, where its options are not seen; write the words of its command",
            ),
            false => Torchrun::None,
        };
    }
    let (mut options, mut is_module, mut is_program) = (Vec::new(), false, false);
    let mut words = words.peekable();
    while let Some(word) = words.next_if(|word| word.starts_with('-')) {
        options.push(word.to_owned());
        let option = word.trim_start_matches('-').replace('_', "-");
        is_module |= option == "m" || option == "module";
        is_program |= option == "no-python";
        let has_value = !option.contains('=') && option != "m" && !FLAGS.contains(&option.as_str());
        if has_value {
            options.extend(words.next().map(ToOwned::to_owned));
        }
    }
    let rest: Vec<String> = words.map(ToOwned::to_owned).collect();
    if rest.is_empty() {
        return Torchrun::Unknown("no program is behind torchrun");
    }
    let before: Vec<&str> = match (is_program, is_module) {
        (true, _) => Vec::new(),
        (false, true) => vec![python, "-m"],
        (false, false) => vec![python, "-u"],
    };
    let command = before.into_iter().map(ToOwned::to_owned).chain(rest).collect();
    Torchrun::Program { command, options }
}

#[cfg(test)]
mod tests {
    use super::{Torchrun, unwrap};

    fn command(line: &str) -> Torchrun {
        unwrap(&line.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>())
    }

    fn program(line: &str) -> String {
        match command(line) {
            Torchrun::Program { command, options } => {
                format!("{} <- {}", command.join(" "), options.join(" "))
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_launcher_is_taken_from_the_program() {
        assert_eq!(
            program("torchrun --nproc_per_node=8 --nnodes 2 train.py --epochs 3"),
            "python3 -u train.py --epochs 3 <- --nproc_per_node=8 --nnodes 2"
        );
        assert_eq!(
            program("/venv/bin/python -m torch.distributed.run --standalone -m pkg.train -x"),
            "/venv/bin/python -m pkg.train -x <- --standalone -m"
        );
        assert_eq!(program("torchrun --no-python ./run a"), "./run a <- --no-python");
        assert_eq!(command("python train.py"), Torchrun::None);
        assert_eq!(command("bash -c echo"), Torchrun::None);
        assert!(matches!(command("bash -c torchrun"), Torchrun::Unknown(_)));
        assert!(matches!(command("torchrun --nnodes"), Torchrun::Unknown(_)));
    }
}
