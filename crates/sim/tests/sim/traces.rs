//! Traces that are wrong: what the error says, and where it is.

use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use muster_sim::trace::{Jobs, LINE_BYTES_MAX, Order, SubmitOrder, TraceError, read_failures, read_nodes};

use crate::support::{Files, JOBS_HEADER, NODES_HEADER, jobs, nodes};

fn read_jobs(path: &Path) -> Result<usize, TraceError> {
    Jobs::read(path, SubmitOrder::Ascending).map(|jobs| jobs.len())
}

fn packed(text: &str) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(text.as_bytes()).unwrap();
    packer.finish().unwrap()
}

/// A row of jobs and what is wrong with it, on line 3.
const JOB_ROWS: &[(&str, &str)] = &[
    ("b,-5,1,,1,1000,,,", "column submit_s: must be a whole number from 0 to 100000000000, got \"-5\""),
    ("b,,1,,1,1000,,,", "column submit_s: must be a whole number from 0 to 100000000000, got \"\""),
    ("b,9,1,,1,1000,,,", "column submit_s: must not be before the row above, which has 10, got \"9\""),
    ("b,10,1.5,,1,1000,,,", "column duration_s: must be a whole number from 0 to 100000000000, got \"1.5\""),
    ("b,10,1,,0,1000,,,", "column replicas: must be a whole number from 1 to 16384, got \"0\""),
    ("b,10,1,,many,1000,,,", "column replicas: must be a whole number from 1 to 16384, got \"many\""),
    ("b,10,1,,1,-1,,,", "column accel_milli: must be a whole number from 0 to 64000, got \"-1\""),
    ("b,10,1,,1,99999999999999999999,,,", "column accel_milli: must be a whole number from 0 to 64000"),
    (
        "b,10,1,,1,1500,,,",
        "column accel_milli: must be at most 1000 (a share of one device) or whole thousands",
    ),
    ("b,10,1,A||B,1,1000,,,", "column accel_type: must be types separated by '|', none of them empty"),
    ("b,10,1,,1,1000,+4,,", "column cpu_milli: must be a whole number from 0 to 4096000, got \"+4\""),
    ("b,10,1,,1,1000,,0x10,", "column mem_mib: must be a whole number from 0 to 67108864, got \"0x10\""),
    ("a,10,1,,1,1000,,,", "column job_id: must be unique, and was there before, got \"a\""),
    (",10,1,,1,1000,,,", "column job_id: must have 1 to 256 bytes, got \"\""),
    ("b,10,1", "has 3 cells, the header has 9"),
];

#[test]
fn a_wrong_row_is_named_with_its_place() {
    for (row, expected) in JOB_ROWS {
        let text = format!("{JOBS_HEADER}\na,10,5,,1,1000,,,\n{row}\n");
        let files = Files::new(&[("jobs.csv", &text)]);
        let path = files.path("jobs.csv");
        let error = read_jobs(&path).unwrap_err().to_string();
        let place = format!("{}, line 3", path.display());
        assert!(error.starts_with(&place) && error.contains(expected), "{row}\n{error}");
    }
}

#[test]
fn a_wrong_node_is_named_with_its_place() {
    let cases = [
        ("n1,r,c,A100,8,1,1", "column node_id: must be unique"),
        ("n2,r,c,A100,-8,1,1", "column accel_count: must be a whole number from 0 to 64, got \"-8\""),
        ("n2,r,c,A100,65,1,1", "column accel_count: must be a whole number from 0 to 64"),
        ("n2,r,c,,8,1,1", "column accel_type: must name the type of the 8 accelerators, got \"\""),
        ("n2,r,c,A100,8,0,1", "column cpu_milli: must be a whole number from 1 to 4096000, got \"0\""),
        ("n2,r,c,A100,8,1,0", "column mem_mib: must be a whole number from 1 to 67108864, got \"0\""),
    ];
    for (row, expected) in cases {
        let files = Files::new(&[("nodes.csv", &format!("{NODES_HEADER}\nn1,r,c,A100,8,1,1\n{row}\n"))]);
        let error = read_nodes(&files.path("nodes.csv")).unwrap_err().to_string();
        assert!(error.contains("nodes.csv, line 3, ") && error.contains(expected), "{row}\n{error}");
    }
    let files = Files::new(&[("nodes.csv", &format!("{NODES_HEADER}\n"))]);
    let error = read_nodes(&files.path("nodes.csv")).unwrap_err().to_string();
    assert!(error.ends_with("is empty, expected at least one node below the header"), "{error}");
}

#[test]
fn a_wrong_failure_is_named_with_its_place() {
    let files = Files::new(&[("nodes.csv", &nodes(&["n1 c A100 8", "n2 c A100 8"]))]);
    let known = read_nodes(&files.path("nodes.csv")).unwrap();
    let cases = [
        ("n3,20,30", "column node_id: must be a node of the file of nodes, got \"n3\""),
        ("n2,5,30", "column failed_s: must not be before the row above, which has 10, got \"5\""),
        ("n2,20,20", "column repaired_s: must be after the failure at 20, got \"20\""),
        ("n1,15,30", "column failed_s: must be after the node's last repair at 15, got \"15\""),
    ];
    for (row, expected) in cases {
        let files = Files::new(&[("f.csv", &format!("node_id,failed_s,repaired_s\nn1,10,15\n{row}\n"))]);
        let error = read_failures(&files.path("f.csv"), &known).unwrap_err().to_string();
        assert!(error.contains("f.csv, line 3, ") && error.contains(expected), "{row}\n{error}");
    }
}

#[test]
fn an_order_names_only_jobs_that_there_are() {
    let files = Files::new(&[("jobs.csv", &jobs(&["a 0 1 1 1000"])), ("order.txt", "a\n\n  a \nb\na\n")]);
    let known = Jobs::read(&files.path("jobs.csv"), SubmitOrder::Any).unwrap();
    let order: Vec<_> = Order::open(&files.path("order.txt"), &known).unwrap().collect();
    assert_eq!(order.len(), 3, "nothing follows the error");
    assert_eq!((order[0].as_ref().ok(), order[1].as_ref().ok()), (Some(&0), Some(&0)));
    let error = order[2].as_ref().unwrap_err().to_string();
    assert!(
        error.ends_with("order.txt, line 4, column job_id: must be a job of the file of jobs, got \"b\""),
        "{error}"
    );
}

#[test]
fn a_header_must_have_its_columns_in_any_order() {
    let files = Files::new(&[
        ("missing.csv", "job_id,submit_s,accel_type,replicas,accel_milli,cpu_milli,mem_mib\n"),
        (
            "twice.csv",
            "replicas,job_id,submit_s,duration_s,accel_type,replicas,accel_milli,cpu_milli,mem_mib\n",
        ),
        (
            "other.csv",
            "colour,mem_mib,cpu_milli,accel_milli,replicas,accel_type,duration_s,submit_s,job_id\nred,4,3,1000,2,A|B|A,6,5,\"a,\"\"b\"\"\"\n",
        ),
    ]);
    let error = read_jobs(&files.path("missing.csv")).unwrap_err().to_string();
    assert!(error.contains("missing.csv, line 1: there is no column duration_s; the header is"), "{error}");
    let error = read_jobs(&files.path("twice.csv")).unwrap_err().to_string();
    assert!(error.ends_with("twice.csv, line 1: column replicas is there twice"), "{error}");
    let rows = Jobs::read(&files.path("other.csv"), SubmitOrder::Ascending).unwrap();
    assert_eq!((rows[0].id.as_str(), rows[0].submit_s, rows[0].duration_s), ("a,\"b\"", 5, Some(6)));
    assert_eq!((rows[0].replicas, rows[0].total_milli(), rows[0].cpu_milli), (2, 2_000, Some(3)));
    assert_eq!((rows[0].mem_mib, &rows[0].accel_types[..]), (Some(4), &["A".to_owned(), "B".to_owned()][..]));
}

#[test]
fn files_that_are_none_are_told_apart() {
    let text = jobs(&["a 0 1 1 1000", "b 1 1 1 1000"]);
    let long = format!("{JOBS_HEADER}\n{}", "x".repeat(2 * LINE_BYTES_MAX));
    let open_quote = format!("{JOBS_HEADER}\n\"{}", "x,\n".repeat(LINE_BYTES_MAX));
    let files = Files::new(&[("empty.csv", ""), ("long.csv", &long), ("quote.csv", &open_quote)]);
    let whole = packed(&text);
    let mut damaged = whole.clone();
    let end = damaged.len();
    damaged[end - 6] ^= 1;
    let not_text = [text.as_bytes(), b"c,2,1,\xff,1,1000,,,\n"].concat();
    let written = [
        ("whole.gz", &whole[..]),
        ("cut.gz", &whole[..end - 12]),
        ("damaged.gz", &damaged[..]),
        ("empty.gz", &packed("")[..]),
        ("bytes.csv", &not_text[..]),
    ];
    for (name, bytes) in written {
        std::fs::write(files.path(name), bytes).unwrap();
    }
    assert_eq!(read_jobs(&files.path("whole.gz")).unwrap(), 2);
    let cases = [
        ("none.csv", "none.csv: cannot be opened"),
        ("empty.csv", "empty.csv: is empty, expected a header row"),
        ("empty.gz", "empty.gz: is empty, expected a header row"),
        ("cut.gz", ": the gzip file is cut short"),
        ("damaged.gz", ": cannot be read on"),
        ("long.csv", "long.csv, line 2: is longer than 65536 bytes"),
        ("quote.csv", "quote.csv, line 2: is longer than 65536 bytes"),
        ("bytes.csv", "bytes.csv, line 4: is not UTF-8 text"),
    ];
    for (name, expected) in cases {
        let error = read_jobs(&files.path(name)).unwrap_err().to_string();
        assert!(error.ends_with(expected) && error.contains(name), "{name}: {error}");
    }
}

#[test]
fn a_quote_within_a_cell_is_a_sign_like_any_other() {
    let mut rows: Vec<String> = vec!["5\" 0 1 1 1000".into()];
    rows.extend((0..5_000).map(|n| format!("job-{n} 0 1 1 1000")));
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let files = Files::new(&[("jobs.csv", &jobs(&rows))]);
    assert_eq!(read_jobs(&files.path("jobs.csv")).unwrap(), 5_001);
}
