// The few icons there are, drawn with lines of the text's colour.

const shapes = {
  overview: 'M3 13h7V3H3zM14 21h7V11h-7zM14 3v5h7V3zM3 21h7v-5H3z',
  sandbox: 'M12 3 4 7.500v9L12 21l8-4.500v-9zM4 7.500 12 12l8-4.500M12 12v9',
  workflow: 'M3 5h8M8 12h9M14 19h7M3 12h1M3 19h1',
  gateway: 'M3 12h5M16 5h5M16 12h5M16 19h5M8 12h8M8 12c4 0 4-7 8-7M8 12c4 0 4 7 8 7',
  agent: 'M5 8h14v11H5zM12 8V4M12 4h.01M9 13v1.500M15 13v1.500M2 12v3M22 12v3',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4.900 4.900l1.400 1.400M17.700 17.700l1.400 1.400M2 12h2M20 12h2M4.900 19.100l1.400-1.400M17.700 6.300l1.400-1.400',
  moon: 'M20 14.500A8.500 8.500 0 0 1 9.500 4a8.500 8.500 0 1 0 10.500 10.500z',
  auto: 'M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18',
  help: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM9.500 9.200a2.600 2.600 0 1 1 3.700 2.600c-.8.400-1.200.9-1.200 1.900M12 17h.01',
  leave: 'M14 4h5v16h-5M10 8l-4 4 4 4M6 12h9',
  folder: 'M3 6h6l2 2.500h10V19H3z',
  file: 'M6 3h8l5 5v13H6zM14 3v5h5',
  link: 'M14 4h6v6M20 4l-9 9M18 14v6H4V6h6',
  more: 'M5 12h.01M12 12h.01M19 12h.01',
  back: 'M15 5l-7 7 7 7',
  next: 'M9 5l7 7-7 7',
  copy: 'M9 9h11v11H9zM15 9V4H4v11h5',
  search: 'M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l4.500 4.500',
  close: 'M6 6l12 12M18 6 6 18',
};

export type IconName = keyof typeof shapes;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg
      class="icon"
      width={size}
      height={size}
      viewBox="0 0 24 24"
      fill="none"
      stroke="currentColor"
      stroke-width="1.8"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      <path d={shapes[name]} />
    </svg>
  );
}
