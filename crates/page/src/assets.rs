//! Files that the pages refer to.

/// One file.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Its path on the server.
    pub path: &'static str,
    /// Its media type.
    pub media_type: &'static str,
    /// What is in it.
    pub content: &'static str,
}

/// All of them.
pub const ASSETS: [Asset; 3] = [
    Asset {
        path: "/assets/page.css",
        media_type: "text/css; charset=utf-8",
        content: include_str!("../assets/page.css"),
    },
    Asset {
        path: "/assets/page.js",
        media_type: "text/javascript; charset=utf-8",
        content: include_str!("../assets/page.js"),
    },
    Asset {
        path: "/assets/icon.svg",
        media_type: "image/svg+xml",
        content: include_str!("../assets/icon.svg"),
    },
];
